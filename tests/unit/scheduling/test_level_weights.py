"""Shares that weights entitle to, by levels."""

import pytest

from fairserve.scheduling.level_weights import entitled_shares

PLAIN = (1.0, 1.0, 1.0)
OWNERS = {
    ("t", "chat", "big"): (1.0, 3.0, 9.0),
    ("t", "mail", "small"): PLAIN,
    ("plain", "app", "u"): PLAIN,
    ("rich", "app2", "u"): (2.0, 1.0, 1.0),
}


@pytest.mark.parametrize(
    ("levels", "parts"),
    [
        ("tenant > user", [27 / 28, 1 / 28, 1, 2]),
        ("tenant > app > user", [3 / 4, 1 / 4, 1, 2]),
        ("user", [27, 1, 1, 2]),
    ],
)
def test_a_weight_divides_the_share_of_siblings_and_nothing_else(levels, parts):
    shares = entitled_shares(OWNERS, levels)
    assert list(shares.values()) == pytest.approx([part / sum(parts) for part in parts])


def test_the_apps_of_one_user_divide_its_share():
    shares = entitled_shares(
        {
            ("t", "a", "u"): PLAIN,
            ("t", "b", "u"): (1.0, 3.0, 1.0),
            ("t", "a", "v"): (1.0, 1.0, 3.0),
        },
        "tenant > user",
    )
    assert list(shares.values()) == pytest.approx([1 / 8, 3 / 8, 1 / 2])


def test_nobody_is_entitled_to_nothing():
    assert entitled_shares({}, "tenant > user") == {}
