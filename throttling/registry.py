"""Throttling policies by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeVar

from fairserve.throttling.base import ThrottlingPolicy
from fairserve.throttling.overload.none import NoThrottle
from fairserve.throttling.overload.oit import OitOptions, OitThrottle
from fairserve.throttling.overload.rpm import RpmOptions, RpmThrottle

T = TypeVar("T")
ThrottleFactory = Callable[..., ThrottlingPolicy]


def _none() -> ThrottlingPolicy:
    return NoThrottle()


def _rpm(**options: Any) -> ThrottlingPolicy:
    return RpmThrottle(RpmOptions(**options))


def _oit(**options: Any) -> ThrottlingPolicy:
    return OitThrottle(OitOptions(**options))


class Registry(Mapping[str, T]):
    """An immutable mapping whose KeyError lists the known names.

    Some entries exist only to be compared with. A module above registers them, and is imported at
    the first request for a name that is not :attr:`offered`, or for all names.
    """

    def __init__(self, kind: str, offered: Mapping[str, T], compared: str = "") -> None:
        """``compared`` is ``module:NAME`` of the mapping with the further entries; empty for none."""
        self._kind = kind
        self._offered = MappingProxyType(dict(offered))
        self._compared = compared

    @property
    def offered(self) -> tuple[str, ...]:
        """Return the names that help, console and guides list. Imports nothing."""
        return tuple(self._offered)

    @cached_property
    def _entries(self) -> Mapping[str, T]:
        if not self._compared:
            return self._offered
        module, _, name = self._compared.partition(":")
        return MappingProxyType({**self._offered, **getattr(import_module(module), name)})

    def __getitem__(self, name: str) -> T:
        if name in self._offered:
            return self._offered[name]
        try:
            return self._entries[name]
        except KeyError:
            known = ", ".join(self._entries)
            raise KeyError(f"unknown {self._kind} {name!r}; known: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


THROTTLES: Registry[ThrottleFactory] = Registry(
    "throttle", {"none": _none, "rpm": _rpm, "oit": _oit}
)
