"""The error of a value that may have several forms is about the form that it has."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fairserve.platform.base.validation import true_problem

Text = Annotated[str, Field(min_length=1, max_length=9)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class Function(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["function"]
    name: Text
    choice: Text | list[Text] | None = None


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    stop: Text | Annotated[list[Text], Field(max_length=3)] | None = None
    input: Text | Ids | Annotated[list[Text], Field(max_length=3)] | list[Ids] | None = None
    choice: Literal["none", "auto"] | Function | None = None
    functions: list[Function] | None = None
    labels: dict[Text, Text] | None = None
    any: dict[str, Any] | None = None


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({"stop": ["a"] * 4}, "stop", "at most 3 items"),
        ({"stop": ["a", ""]}, "stop[1]", "at least 1 character"),
        ({"stop": ["a", 5]}, "stop[1]", "a valid string"),
        ({"stop": ""}, "stop", "at least 1 character"),
        ({"stop": 5}, "stop", "a valid string, or a valid list"),
        ({"stop": {"a": 1}}, "stop", "a valid string, or a valid list"),
        ({"input": ["a", ""]}, "input[1]", "at least 1 character"),
        ({"input": ["a"] * 4}, "input", "at most 3 items"),
        ({"input": ["a", 5]}, "input[1]", "a valid string"),
        ({"input": [1, -5]}, "input[1]", "greater than or equal to 0"),
        ({"input": [1, 2, "x"]}, "input[2]", "a valid integer"),
        ({"input": [[1], []]}, "input[1]", "at least 1 item"),
        ({"input": [[1], [2, -1]]}, "input[1][1]", "greater than or equal to 0"),
        ({"input": 5}, "input", "a valid string, or a valid list"),
        ({"choice": "any"}, "choice", "'none' or 'auto'"),
        ({"choice": {"type": "x", "name": "f"}}, "choice.type", "'function'"),
        ({"choice": {"type": "function"}}, "choice.name", "Field required"),
        ({"choice": {"type": "function", "name": "f", "url": "x"}}, "choice.url", "not permitted"),
        (
            {"choice": {"type": "function", "name": "f", "choice": [""]}},
            "choice.choice[0]",
            "least 1",
        ),
        ({"choice": 5}, "choice", "'none' or 'auto'"),
        ({"functions": [{"type": "function", "name": "f" * 10}]}, "functions[0].name", "at most 9"),
        ({"labels": {"": "a"}}, "labels.", "at least 1 character"),
        ({"labels": {"a": ""}}, "labels.a", "at least 1 character"),
        ({"any": [1]}, "any", "a valid dictionary"),
        ({"unknown": 1}, "unknown", "not permitted"),
    ],
)
def test_the_error_names_the_true_reason(body, field, text):
    with pytest.raises(ValidationError) as raised:
        Body.model_validate(body)
    problem = true_problem(raised.value.errors(), body)
    assert problem.field == field
    assert text in problem.text
