"""Test the throttling form: parsing, stored values, errors by field, differences of versions."""

import math
from typing import Literal

import pytest

from fairserve.platform.console.throttling_form import (
    ParameterChange,
    ParameterKind,
    differences,
    errors_by_field,
    kind_of,
    parameter_form,
    parse,
    text_of,
    to_store,
)
from fairserve.platform.tenancy.system.settings import TuningSettings
from fairserve.platform.tuning.service import Current
from fairserve.scheduling.registry import SYSTEMS

WHOLE, NUMBER = ParameterKind("whole"), ParameterKind("number")


@pytest.fixture
def settings():
    return TuningSettings()


def fields(found):
    return {field.name: field for field in found.fields}


def form_of(found, **changes):
    changed = {name.replace("__", "."): text for name, text in changes.items()}
    return {f"p.{f.name}": changed.pop(f.name, f.text) for f in found.fields} | changed


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (int, WHOLE),
        (float, NUMBER),
        (float | None, ParameterKind("number", (), True)),
        (Literal["a", "b"], ParameterKind("choice", ("a", "b"))),
        (Literal["a"] | None, ParameterKind("choice", ("a", "none"), True)),
        (str, ParameterKind("text")),
    ],
)
def test_field_kind_follows_from_the_type(hint, kind):
    assert kind_of("x", hint) == kind


def test_the_form_offers_levels():
    assert "tenant > user" in kind_of("levels", str).choices


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (WHOLE, " 12 ", 12),
        (WHOLE, "-3", -3),
        (NUMBER, "2", 2.0),
        (NUMBER, ".5", 0.5),
        (NUMBER, "1e-6", 1e-6),
        (NUMBER, "inf", math.inf),
        (NUMBER._replace(nullable=True), "none", None),
        (kind_of("x", Literal["a"] | None), "none", None),
        (kind_of("x", Literal["a"] | None), "a", "a"),
    ],
)
def test_texts_are_parsed_exactly(kind, text, value):
    found = parse(kind, text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((WHOLE, text) for text in ("", "1.5", "1_000", "1,000", "٣", "none", "inf", "9" * 19)),
        *((NUMBER, text) for text in ("", "x", "nan", "-inf", "Infinity", "1,5", "1e999", "0x1")),
        (kind_of("x", Literal["a"]), "none"),
    ],
)
def test_parse_errors_name_the_allowed_values(kind, text):
    with pytest.raises(ValueError, match="is not allowed; must be ") as error:
        parse(kind, text)
    assert kind.allowed in str(error.value)


@pytest.mark.parametrize("system", SYSTEMS)
def test_values_of_every_system_survive_a_round_trip(settings, system):
    if SYSTEMS[system].simulated_only:
        return
    current = Current("other")
    shown = parameter_form(settings, current, system)
    for field in shown.fields:
        assert text_of(parse(field.kind, field.text)) == field.text
        assert parse(field.kind, field.text) == field.value
    sent = parameter_form(settings, current, system, form_of(shown))
    assert not sent.problems
    assert sent.parameters == {}, "all are the defaults"


def test_only_values_other_than_the_default_are_stored():
    base = {"a": 1, "b": 2.0, "c": 3.0, "d": None}
    assert to_store({**base, "a": 2, "c": math.inf, "d": 0.5}, base, {}) == {
        "a": 2,
        "c": "inf",
        "d": 0.5,
    }
    assert to_store({**base, "b": None}, base, {}) == {"b": None}


def test_stored_values_are_kept_even_if_equal_to_the_default():
    base = {"a": 2.0, "b": 2.0, "c": math.inf}
    assert to_store(base, base, {"a": 2, "b": 3, "c": "inf"}) == {"a": 2, "c": "inf"}


def test_server_settings_are_the_default():
    settings = TuningSettings(system_options={"high_watermark": 3.0, "feeder.weight_cap": 9.0})
    shown = parameter_form(settings, Current("fairserve", {"immunity_factor": 6}), "fairserve")
    found = fields(shown)
    high = found["high_watermark"]
    assert (high.value, high.default, high.own_default, high.differs) == (3.0, 3.0, 2.0, False)
    assert found["feeder.weight_cap"].default == 9
    assert found["immunity_factor"].differs
    assert parameter_form(
        settings, Current("fairserve"), "fairserve", form_of(shown)
    ).parameters == {"immunity_factor": 6.0}
    other = fields(parameter_form(settings, Current("fairserve", {"immunity_factor": 6}), "fs-wi"))
    assert (other["feeder.weight_cap"].default, other["immunity_factor"].value) == (math.inf, 2.0)


def test_an_invalid_text_is_kept_and_its_field_marked(settings):
    current = Current("fairserve")
    form = form_of(
        parameter_form(settings, current, "fairserve"), feeder__weight_cap="x", resident_share="0.5"
    )
    found = parameter_form(settings, current, "fairserve", form)
    (wrong,) = found.problems
    assert (wrong.name, wrong.text, wrong.value) == ("feeder.weight_cap", "x", math.inf)
    assert fields(found)["resident_share"].text == "0.5"
    assert found.parameters == {}


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ({"feeder.weight_cap": -1.0, "resident_share": 0.5}, {"feeder.weight_cap"}),
        ({"low_watermark": 3.0}, {"low_watermark"}),
        ({"low_watermark": 3.0, "high_watermark": 4.0}, set()),
        ({"low_watermark": 5.0, "high_watermark": 4.0}, {"low_watermark", "high_watermark"}),
        (
            {"low_watermark": 3.0, "high_watermark": 4.0, "resident_share": 2.0},
            {"resident_share"},
        ),
        ({"resident_share": 2.0, "feeder.gamma": -1.0}, {"resident_share", "feeder.gamma"}),
    ],
)
def test_parameters_with_invalid_values_are_found(settings, chosen, names):
    assert set(errors_by_field(settings, "fairserve", chosen)) == names


def test_unknown_systems_and_parameters_are_rejected(settings):
    current = Current("fairserve")
    with pytest.raises(ValueError, match="nothing"):
        parameter_form(settings, current, "nothing")
    with pytest.raises(ValueError, match=r"has no parameter feeder\.max_bypass"):
        parameter_form(settings, current, "fairserve", {"p.feeder.max_bypass": "1"})
    with pytest.raises(ValueError, match="more than"):
        parameter_form(settings, current, "rpm-" + "9" * 200)
    assert parameter_form(settings, current, "rpm-7").fields


def test_a_version_diff_lists_changed_values():
    old = ("fairserve", {"a": 1, "b": 2, "c": "inf"})
    assert differences(old, ("fairserve", {"a": 1, "b": 3, "d": "user"})) == [
        ParameterChange("b", "2", "3"),
        ParameterChange("c", "inf", "default"),
        ParameterChange("d", "default", "user"),
    ]
    assert differences(old, ("rpm-7", {"e": 0.5})) == [
        ParameterChange("system", "fairserve", "rpm-7"),
        ParameterChange("e", "default", "0.5"),
    ]
    assert differences(old, ("fairserve", {"a": 1.0, "b": 2, "c": "inf"})) == []
