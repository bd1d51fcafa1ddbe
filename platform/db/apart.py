"""Write items in one transaction, and apart if the database rejects one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from fairserve.platform.db.causes import may_be_values

Item = TypeVar("Item")


def write_apart(
    write: Callable[[Sequence[Item]], None],
    items: Sequence[Item],
    blames: Callable[[Exception], bool] = may_be_values,
) -> list[tuple[Item, Exception]]:
    """Write items, so that one that the database rejects stops no other; return these with the errors.

    ``write`` writes items in a transaction of its own; ``blames`` returns whether the items caused an
    error. Items that are rejected together are written in halves, in their order. Raises the other
    errors of ``write``: what precedes is written then. Cost of a bad item among n: about 2 log2(n)
    transactions.
    """
    if not items:
        return []
    try:
        write(items)
    except Exception as error:
        if not blames(error):
            raise
        if len(items) == 1:
            return [(items[0], error)]
    else:
        return []
    middle = len(items) // 2
    first = write_apart(write, items[:middle], blames)
    return [*first, *write_apart(write, items[middle:], blames)]
