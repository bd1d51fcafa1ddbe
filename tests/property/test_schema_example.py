"""Values that the demo model makes for JSON schemas are valid."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from fairserve.engine.torch.scripted.schema_example import NoExampleError, SchemaExample

NAMES = st.sampled_from(["city", "days", "unit", "über", "a/b~c"])
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["a", "b", ""])
SMALL = st.integers(0, 4)
FORMATS = st.sampled_from(["date", "date-time", "email", "uri", "uuid", "ipv4", "made-up"])


def optional(**fields):
    """Return a strategy of dictionaries with some of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


def with_type(kind, fields):
    return fields.map(lambda found: {"type": kind, **found})


def ordered(low, high):
    """Swap two bounds of a schema that are in the wrong order, so that most schemas have a value."""

    def swap(schema):
        if low in schema and high in schema and schema[low] > schema[high]:
            schema[low], schema[high] = schema[high], schema[low]
        return schema

    return swap


numbers = st.one_of(
    with_type(
        kind,
        optional(
            minimum=st.integers(-9, 20),
            maximum=st.integers(-9, 20),
            exclusiveMinimum=st.sampled_from([-3, 0, 2.5]),
            exclusiveMaximum=st.sampled_from([30, 4.5]),
        ),
    ).map(ordered("minimum", "maximum"))
    for kind in ("integer", "number")
)
texts = with_type("string", optional(minLength=SMALL, maxLength=st.integers(0, 40))).map(
    ordered("minLength", "maxLength")
) | with_type("string", optional(format=FORMATS))
leaves = st.one_of(
    numbers,
    texts,
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": ["string", "null"]}),
    st.just(True),
    st.just({}),
    st.builds(lambda value: {"const": value}, SCALARS),
    st.builds(lambda values: {"enum": values}, st.lists(SCALARS, min_size=1, max_size=4)),
    st.just({"$ref": "#/$defs/node"}),
)


def nested(parts):
    """Return a strategy of schemas with such parts."""
    objects = with_type(
        "object",
        optional(
            properties=st.dictionaries(NAMES, parts, max_size=4),
            required=st.lists(NAMES, max_size=3, unique=True),
            additionalProperties=st.booleans() | parts,
        ),
    )
    arrays = with_type(
        "array",
        optional(
            items=parts,
            minItems=SMALL,
            maxItems=SMALL,
            uniqueItems=st.booleans(),
        ),
    ).map(ordered("minItems", "maxItems"))
    unions = st.builds(
        lambda kind, found: {kind: found},
        st.sampled_from(["anyOf", "allOf"]),
        st.lists(parts, min_size=1, max_size=3),
    )
    return objects | arrays | unions


schemas = st.recursive(leaves, nested, max_leaves=12)
LIST_NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "string"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["value"],
}


@given(
    schemas, st.sampled_from(["rain in Paris", "7 days, 2.5 mm, -3 degrees", "", "žluťoučký 🐎"])
)
def test_a_value_is_valid_and_always_the_same(schema, text):
    root = {"$defs": {"node": LIST_NODE}, **({} if schema is True else schema)}
    try:
        value = SchemaExample(root, text, text).value()
    except NoExampleError:
        assume(False)
    assert json.loads(json.dumps(value)) == value
    Draft202012Validator(root).validate(value)
    assert SchemaExample(root, text, text).value() == value


@given(st.dictionaries(NAMES, numbers | texts, min_size=1))
def test_plain_objects_have_values(properties):
    for schema in properties.values():
        for name in ("exclusiveMinimum", "exclusiveMaximum"):
            schema.pop(name, None)
    root = {"type": "object", "properties": properties, "required": list(properties)}
    value = SchemaExample(root, "some words").value()
    assert list(value) == list(properties)
    Draft202012Validator(root).validate(value)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string", "pattern": "^a$"}, "'pattern' is not supported"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "no value"),
        ({"oneOf": [{"type": "number"}, {"type": "string"}]}, "'oneOf' is not supported"),
        ({"type": "array", "uniqueItems": True, "minItems": 2}, "must be different"),
        ({"$ref": "https://example.com/schema"}, "leaves the schema"),
        ({"$ref": "#"}, "too deep"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "too deep"),
        ({"type": "array", "minItems": 10**9}, "minItems is over"),
        ({"type": "string", "minLength": 10**9}, "minLength is over"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no number"),
        ({"type": "object", "required": 5}, "not a valid schema"),
        ({"enum": ["a"], "type": "integer"}, "none of its values"),
    ],
)
def test_a_schema_without_a_known_value_is_rejected(schema, reason):
    with pytest.raises(NoExampleError, match=reason):
        SchemaExample(schema, "words").value()


def test_values_are_of_the_text():
    schema = {
        "type": "object",
        "properties": {
            "place": {"type": "string"},
            "days": {"type": "integer", "maximum": 5},
            "depth": {"type": "number"},
            "unit": {"enum": ["m", "ft"]},
            "note": {"type": "string"},
        },
        "required": ["place", "days", "depth", "unit"],
    }
    value = SchemaExample(schema, "Paris", "Rain in Paris for 7 days, 2.5 m deep").value()
    assert value == {"place": "Paris", "days": 5, "depth": 2.5, "unit": "m"}
