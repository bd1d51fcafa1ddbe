"""The modules of ``pages``, and the navigation, which each declares its own entry of.

A module has a ``router``, and a page that the navigation links has a ``PAGE``. Modules are found in the
order of their names, which decides between two routes that match a path.
"""

from __future__ import annotations

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
    """Last part of its path, and the name that its template sets."""
    title: str
    position: int
    only_admin: bool = False
    """True if a tenant's key cannot open it."""

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
