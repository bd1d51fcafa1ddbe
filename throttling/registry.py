"""Throttling policies by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from fairserve.throttling.base import ThrottlingPolicy
from fairserve.throttling.overload.none import NoThrottle
from fairserve.throttling.overload.oit import OitOptions, OitThrottle
from fairserve.throttling.overload.rpm import RpmOptions, RpmThrottle

ThrottleFactory = Callable[..., ThrottlingPolicy]


def _none() -> ThrottlingPolicy:
    return NoThrottle()


def _rpm(**options: Any) -> ThrottlingPolicy:
    return RpmThrottle(RpmOptions(**options))


def _oit(**options: Any) -> ThrottlingPolicy:
    return OitThrottle(OitOptions(**options))


class Registry(Mapping[str, Any]):
    """An immutable mapping whose KeyError lists the known names."""

    def __init__(self, kind: str, entries: Mapping[str, Any]) -> None:
        self._kind = kind
        self._entries = MappingProxyType(dict(entries))

    def __getitem__(self, name: str) -> Any:
        try:
            return self._entries[name]
        except KeyError:
            known = ", ".join(self._entries)
            raise KeyError(f"unknown {self._kind} {name!r}; known: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


THROTTLES: Mapping[str, ThrottleFactory] = Registry(
    "throttle", {"none": _none, "rpm": _rpm, "oit": _oit}
)
