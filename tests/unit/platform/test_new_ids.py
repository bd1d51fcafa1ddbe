"""Ids are unique, and sort by the time at which they are made."""

from fairserve.platform.db import base
from fairserve.platform.db.base import ID_CHARS, new_id


def test_later_ids_sort_after_earlier_ones(monkeypatch):
    times = [1_767_225_600.0, 1_767_225_600.001, 1_767_229_200.0, 4_102_444_800.0]
    made = []
    for time_s in times:
        monkeypatch.setattr(base, "utc_s", lambda time_s=time_s: time_s)
        made.append(new_id("call"))
    assert made == sorted(made)
    assert {len(each) for each in made} == {len("call_") + 32}
    assert len(made[0]) <= ID_CHARS


def test_ids_of_one_moment_differ(monkeypatch):
    monkeypatch.setattr(base, "utc_s", lambda: 1_767_225_600.0)
    assert len({new_id("run") for _ in range(10_000)}) == 10_000
