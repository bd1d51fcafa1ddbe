"""Free pages of the KV cache. A page holds the keys and values of 16 tokens.

Page 0 is never used: it stays zero and pads page tables, so that a masked row always reads finite
values.
"""

from __future__ import annotations

PAGE_TOKENS = 16
"""Tokens per page."""
PAD_PAGE = 0


def pages_for(tokens: int) -> int:
    """Return the number of pages that hold this many tokens."""
    return -(-tokens // PAGE_TOKENS)


class PagePool:
    """Free list over pages 1..``usable_pages``. Not thread-safe."""

    def __init__(self, usable_pages: int) -> None:
        if usable_pages < 1:
            raise ValueError(f"a pool needs at least one page, got {usable_pages}")
        self.usable_pages = usable_pages
        # Pages are taken from the end of the list, low page numbers before high ones.
        self._free = list(range(usable_pages, 0, -1))
        self._is_free = bytearray([1]) * (usable_pages + 1)

    @property
    def free_pages(self) -> int:
        """Return the number of free pages."""
        return len(self._free)

    def take(self) -> int:
        """Take a free page. Raises IndexError if there is none."""
        page = self._free.pop()
        self._is_free[page] = 0
        return page

    def free(self, page: int) -> None:
        """Free a taken page. Raises ValueError for a page that is not taken."""
        if not 1 <= page <= self.usable_pages or self._is_free[page]:
            raise ValueError(f"page {page} is not taken")
        self._is_free[page] = 1
        self._free.append(page)
