"""Shares of a split follow the weights, a run keeps its version, and changes move few runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.platform.fleet.splits import pick_available, pick_version

RUNS = 20_000
names = st.text(min_size=1, max_size=8)
weights = st.floats(0.01, 1000)
splits = st.dictionaries(names, weights, min_size=1, max_size=6)


def picks(targets, runs=RUNS, split="chat"):
    return [pick_version(split, targets, f"app/run-{n}") for n in range(runs)]


@pytest.mark.parametrize(
    "targets",
    [{"v1": 9, "v2": 1}, {"v1": 1, "v2": 1, "v3": 2}, {"v1": 0.5, "v2": 99.5}, {"v1": 7}],
)
def test_shares_follow_the_weights(targets):
    found = picks(targets)
    total = sum(targets.values())
    for version, weight in targets.items():
        share = weight / total
        sigma = (share * (1 - share) / RUNS) ** 0.5
        assert abs(found.count(version) / RUNS - share) <= 4 * sigma + 1e-9


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"v1": 9, "v2": 1}, {"v1": 8, "v2": 2}),
        ({"v1": 9, "v2": 1}, {"v1": 1, "v2": 1}),
        ({"v1": 2, "v2": 1, "v3": 1}, {"v1": 2, "v2": 1}),
    ],
)
def test_no_more_runs_move_than_the_shares_require(before, after):
    """At least the gain of the growing versions' shares must move."""
    old, new = picks(before), picks(after)
    moved = sum(a != b for a, b in zip(old, new, strict=True)) / RUNS
    sums = sum(before.values()), sum(after.values())
    least = sum(
        max(0.0, weight / sums[1] - before.get(version, 0) / sums[0])
        for version, weight in after.items()
    )
    assert abs(moved - least) < 0.015


@given(splits, names, names, weights)
def test_a_version_that_grows_only_gains(targets, split, key, more):
    """Only its weight changes, so its runs stay, and no run moves between the others."""
    grown = next(iter(targets))
    before = pick_version(split, targets, key)
    after = pick_version(split, {**targets, grown: targets[grown] + more}, key)
    assert after in (before, grown)


@given(splits, names, names, weights)
def test_the_order_and_the_scale_of_the_weights_do_not_matter(targets, split, key, factor):
    found = pick_version(split, targets, key)
    turned = {name: weight * 2 for name, weight in reversed(targets.items())}
    assert pick_version(split, turned, key) == found


@given(splits, names, names, st.data())
def test_only_runs_of_a_missing_version_move(targets, split, key, data):
    there = data.draw(st.sets(st.sampled_from(sorted(targets))))
    found = pick_available(split, targets, key, there)
    usual = pick_version(split, targets, key)
    if usual in there or not there:
        assert found == usual
    else:
        assert found in there


@given(names, names, names, names)
def test_parts_of_the_hashed_text_are_separated(split, more, key, other):
    """``a`` + ``bc`` is not ``ab`` + ``c``: splits draw independently."""
    targets = dict.fromkeys("abcdefgh", 1.0)
    drawn = [pick_version(split + more, targets, f"{key}{n}") for n in range(64)]
    again = [pick_version(split, targets, f"{more}{key}{n}") for n in range(64)]
    assert drawn != again or not more


def test_the_picks_equal_those_of_the_first_release():
    """Another hash would move runs between versions after an upgrade, or between processes."""
    found = "".join(v[-1] for v in picks({"v1": 3, "v2": 2}, 32))
    assert found == "21122212111112111121221211122212"
