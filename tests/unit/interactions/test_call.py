"""Clients have the path of their tenant's levels, and ids that keep it."""

import pytest

from fairserve.interactions.call import client_id, owner_path, path_of_id


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
