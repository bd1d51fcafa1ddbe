"""Test the shares that weights entitle to, by levels."""

import pytest

from fairserve.scheduling.fairness.level_weights import EntitledShares

PLAIN = (1.0, 1.0, 1.0)
OWNERS = {
    ("t", "chat", "big"): (1.0, 3.0, 9.0),
    ("t", "mail", "small"): PLAIN,
    ("plain", "app", "u"): PLAIN,
    ("rich", "app2", "u"): (2.0, 1.0, 1.0),
}


def entitled_shares(weights, levels):
    return EntitledShares(weights, levels).among()


@pytest.mark.parametrize(
    ("levels", "parts"),
    [
        ("tenant > user", [27 / 28, 1 / 28, 1, 2]),
        ("tenant > app > user", [3 / 4, 1 / 4, 1, 2]),
        ("user", [27, 1, 1, 2]),
    ],
)
def test_a_weight_affects_only_the_shares_of_siblings(levels, parts):
    shares = entitled_shares(OWNERS, lambda tenant: levels)
    assert list(shares.values()) == pytest.approx([part / sum(parts) for part in parts])


def test_apps_of_one_user_divide_its_share():
    shares = entitled_shares(
        {
            ("t", "a", "u"): PLAIN,
            ("t", "b", "u"): (1.0, 3.0, 1.0),
            ("t", "a", "v"): (1.0, 1.0, 3.0),
        },
        lambda tenant: "tenant > user",
    )
    assert list(shares.values()) == pytest.approx([1 / 8, 3 / 8, 1 / 2])


def test_every_client_has_a_positive_share():
    assert entitled_shares({}, lambda tenant: "tenant > user") == {}


@pytest.mark.parametrize(
    ("others", "parts"),
    [
        ("tenant > user", [3 / 4, 1 / 4, 1, 2]),
        ("user", [3 / 4, 1 / 4, 1, 2]),  # the tenant with its own levels is one client of the root
    ],
)
def test_each_tenant_divides_its_share_by_its_own_levels(others, parts):
    own = {"t": "tenant > app > user"}
    shares = entitled_shares(OWNERS, lambda tenant: own.get(tenant, others))
    assert list(shares.values()) == pytest.approx([part / sum(parts) for part in parts])
    crowd = {("other", "app", f"u{number}"): PLAIN for number in range(8)}
    both = entitled_shares(OWNERS | crowd, lambda tenant: own.get(tenant, others))
    expected = 1 / 12 if others == "user" else 1 / 40
    assert both["other", "app", "u0"] == pytest.approx(expected)


@pytest.mark.parametrize("levels", ["user", "tenant > user", "tenant > app > user"])
def test_those_who_stay_divide_all_as_if_there_were_no_others(levels):
    """The app with a user's largest weight leaves, then the tenant with the largest."""
    owners = OWNERS | {("t", "heavy", "big"): (1.0, 5.0, 9.0), ("t", "mail", "big"): PLAIN}
    every = EntitledShares(owners, lambda tenant: levels)
    for gone in ("heavy", "app2"):
        owners = {owner: weights for owner, weights in owners.items() if owner[1] != gone}
        alone = EntitledShares(owners, lambda tenant: levels).among()
        assert every.among(owners) == pytest.approx(alone)
        assert sum(alone.values()) == pytest.approx(1.0)
