"""Items are taken in rotation of their owners, whatever the number of an owner's items."""

import pytest

from fairserve.interactions.rotation import Rotation


def rotation(*items):
    """Return a rotation of items whose first letter is their owner."""
    waiting = Rotation()
    for item in items:
        waiting.add(item[0], item)
    return waiting


def test_owners_take_turns():
    waiting = rotation("a0", "a1", "a2", "a3", "b0", "c0", "b1")
    assert [waiting.pop() for _ in range(3)] == ["a0", "b0", "c0"]
    waiting.add("c", "c1")
    assert [waiting.pop() for _ in range(5)] == ["a1", "b1", "c1", "a2", "a3"]
    assert not waiting
    with pytest.raises(KeyError):
        waiting.pop()


def test_an_owner_that_was_chosen_is_the_last_one():
    waiting = rotation("a0", "b0", "b1", "c0")
    assert list(waiting) == ["a", "b", "c"]
    assert waiting.pop("b") == "b0"
    assert list(waiting) == ["a", "c", "b"]
    assert waiting.pop("a") == "a0"
    assert "a" not in waiting
