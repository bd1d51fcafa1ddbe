"""Builds a local scheduler from operator input: a name, and options as ``name=value``.

Both engines use it, the embedded one with flags, the plug-in for vLLM with environment variables.
An invalid name or value raises ValueError with the allowed ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass

from fairserve.scheduling.base import LocalScheduler
from fairserve.scheduling.registry import LOCAL_SCHEDULERS


def read_options(items: Iterable[str]) -> dict[str, object]:
    """Return ``["quantum=5000", "refill-when-stuck=false"]`` as a mapping; JSON values are decoded."""
    options: dict[str, object] = {}
    for item in items:
        name, separator, text = item.partition("=")
        if not separator or not name.strip():
            raise ValueError(f"scheduler option {item!r} is not key=value")
        options[name.strip().replace("-", "_")] = _value(text.strip())
    return options


def make_local_scheduler(name: str, options: Mapping[str, object]) -> LocalScheduler:
    """Return the scheduler of this name with these options."""
    try:
        make = LOCAL_SCHEDULERS[name]
    except KeyError as error:
        raise ValueError(error.args[0]) from error
    defaults = getattr(make(), "options", None)
    known = [each.name for each in fields(defaults)] if is_dataclass(defaults) else []
    for option, value in options.items():
        if option not in known:
            allowed = ", ".join(known) or "none"
            raise ValueError(f"local scheduler {name} has no option {option!r}; allowed: {allowed}")
        _check_kind(name, option, value, getattr(defaults, option))
    return make(**options)


def _check_kind(name: str, option: str, value: object, default: object) -> None:
    """Raise ValueError for a value of the wrong type, which would fail later with a worse message."""
    if isinstance(default, bool):
        fits, kind = isinstance(value, bool), "true, false"
    elif isinstance(default, int):
        fits, kind = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    elif isinstance(default, float):
        fits, kind = isinstance(value, int | float) and not isinstance(value, bool), "a number"
    else:
        return
    if not fits:
        raise ValueError(f"{option} of local scheduler {name} is {value!r}; allowed: {kind}")


def _value(text: str) -> object:
    """Return the decoded JSON value, or else the text; NaN and infinity are not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(constant: str) -> object:
    raise ValueError(constant)
