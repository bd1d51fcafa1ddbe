"""Clients have the path of their tenant's levels, and ids that keep it; calls survive JSON."""

import json
from dataclasses import fields

import numpy as np
import pytest

from fairserve.interactions.call import (
    Call,
    call_from_plain,
    call_to_plain,
    client_id,
    owner_path,
    path_of_id,
)
from fairserve.interactions.run_rules import Clue


@pytest.mark.parametrize(
    ("levels", "path"),
    [
        ("user", ("t%2Fx/u",)),
        ("tenant > user", ("t/x", "u")),
        ("tenant > app > user", ("t/x", "a", "u")),
    ],
)
def test_a_path_has_the_levels_of_its_tenant(levels, path):
    assert owner_path("t/x", "a", "u", levels) == path


@pytest.mark.parametrize("path", [("a",), ("t/x", "a", "u %"), ("", "u")])
def test_an_id_keeps_its_path(path):
    assert path_of_id(client_id(path)) == path
    assert client_id(path).count("/") == len(path) - 1


SAMPLES = {
    "str": "x",
    "str | None": "x",
    "int": 3,
    "float": 2.5,
    "ClientPath": ("x", "y"),
    "Sequence[int] | None": [1, 2**63],
    "TokenIds": np.array([1, 2**32 - 1], np.uint32),
    "frozenset[str]": frozenset({"x", "y"}),
    "tuple[Clue, ...]": (Clue("conversation", name=3),),
    "tuple[int, ...]": (1, 2**63),
    "tuple[str, ...] | None": ("x", "y"),
}
"""A value of each type of a field, other than its default."""


def test_every_field_of_a_call_survives_json():
    given = {
        each.name: not each.default if each.type == "bool" else SAMPLES[each.type]
        for each in fields(Call)
        if each.init
    }
    back = call_from_plain(json.loads(json.dumps(call_to_plain(Call(**given)))))
    for name, value in given.items():
        found = getattr(back, name)
        assert type(found) is type(value), name
        assert np.array_equal(found, value) if name == "token_ids" else found == value, name
