"""Rows as both databases can store them."""

import pytest

from fairserve.platform.db.upsert import fitting_text


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
