"""The modules of ``pages``, and the navigation, of which each declares its own page.

A module has a ``router``, and a page that the navigation links has a ``PAGE``. Modules are found in the
order of their names, which decides between two routes that match a path. The rail has one entry a
section, which leads to the first of its pages that the viewer may open; the others are its tabs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from fairserve.platform.console import pages


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """A page that the navigation links."""

    name: str
    """End of its path, and the name that its template sets."""
    title: str
    position: int
    """Place among all pages; those of a section follow each other."""
    key: str
    """Letter that opens it after ``g``."""
    only_admin: bool = False
    """True if a tenant's key cannot open it."""
    within: str = ""
    """Section of the rail; empty for one of its own."""
    tab: str = ""
    """Title among the tabs of its section; by default ``title``."""

    @property
    def section(self) -> str:
        """Return the name of its section."""
        return self.within or self.name

    @property
    def path(self) -> str:
        """Return its path."""
        return f"/console/{self.name}"


@cache
def page_modules() -> tuple[ModuleType, ...]:
    """Return the modules of all pages, by name."""
    names = sorted(each.name for each in iter_modules(pages.__path__))
    return tuple(import_module(f"{pages.__name__}.{name}") for name in names)


@cache
def navigation() -> tuple[ConsolePage, ...]:
    """Return the pages of the navigation, in its order."""
    found = [module.PAGE for module in page_modules() if hasattr(module, "PAGE")]
    return tuple(sorted(found, key=lambda page: page.position))


def rail_of(shown: Iterable[ConsolePage]) -> list[ConsolePage]:
    """Return the first page of each section."""
    first: dict[str, ConsolePage] = {}
    for page in shown:
        first.setdefault(page.section, page)
    return list(first.values())


def tabs_of(shown: Iterable[ConsolePage], path: str) -> list[ConsolePage]:
    """Return the pages of the section of the page at ``path``; none if it is alone, or no such page."""
    pages = list(shown)
    section = next((page.section for page in pages if page.path == path), None)
    tabs = [page for page in pages if page.section == section]
    return tabs if len(tabs) > 1 else []


def section_of(name: str) -> str:
    """Return the section of a page by the name that its template sets; empty for no page."""
    return next((page.section for page in navigation() if page.name == name), "")
