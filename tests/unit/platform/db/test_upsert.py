"""Rows as both databases can store them."""

import pytest

from fairserve.platform.db.ledger import LedgerCall, ThrottlingEvent
from fairserve.platform.db.upsert import fitting, fitting_text


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("plain", "plai"),
        ("a\x00bcde", "abcd"),
        ("\ud800äöüß", "?äöü"),
        ("ä\x00\x00öü", "äöü"),
        ("", ""),
    ],
)
def test_texts_are_truncated_and_without_what_a_database_cannot_store(text, stored):
    assert fitting_text(text, 4) == stored


@pytest.mark.parametrize(
    ("number", "big", "small"),
    [
        (7, 7, 7),
        (2**31, 2**31, 2**31 - 1),
        (10**30, 2**63 - 1, 2**31 - 1),
        (-(10**30), -(2**63 - 1), -(2**31 - 1)),
    ],
)
def test_whole_numbers_are_bounded_by_their_columns(number, big, small):
    row = {"output_tokens": number, "cost": number, "stage": number, "service": 1e300}
    assert fitting(LedgerCall.__table__, row) == {
        "output_tokens": big,
        "cost": big,
        "stage": small,
        "service": 1e300,
    }
    assert fitting(ThrottlingEvent.__table__, {"limit_count": number}) == {"limit_count": small}
    assert fitting(LedgerCall.__table__, {"charged": True})["charged"] is True
