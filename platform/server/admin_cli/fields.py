"""Flags that become fields of a body: limits, weights, names. ``none`` removes a limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

from typer import BadParameter

from fairserve.platform.base.command_line import option

_NONE = "none"
_REMOVED = object()
"""Value of a flag that is given as ``none``; a flag that is not given has the value None."""
Parse = Callable[[str], Any]


def _or_none(parse: Parse, what: str) -> Parse:
    def parsed(text: str) -> Any:
        if text == _NONE:
            return _REMOVED
        try:
            return parse(text)
        except ValueError:
            raise ValueError(f"{text!r} is not {what}, or none") from None

    return parsed


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


WHOLE = _or_none(int, "a whole number")
NUMBER = _or_none(float, "a number")
TEXT = _or_none(str, "a text")
NAMES = _or_none(_names, "names")

CONTRACT: tuple[tuple[str, Parse, str, str], ...] = (
    ("rpm_limit", WHOLE, "N", "Calls in any 60 seconds."),
    ("tpm_limit", WHOLE, "N", "Prompt and output tokens in any 60 seconds."),
    ("max_parallel_requests", WHOLE, "N", "Calls that wait or run at a time."),
    ("max_budget", NUMBER, "AMOUNT", "Hard limit of the money for each period."),
    ("soft_budget", NUMBER, "AMOUNT", "Soft limit of the money for each period."),
    ("budget_duration", TEXT, "PERIOD", "Period of the budgets: 1h, 1d, 7d, 1mo, ..."),
    ("soft_end", TEXT, "WHAT", "Effect of the soft limit: warn, or finish_runs."),
    ("allowed_models", NAMES, "A,B", "Models that calls may request."),
)


def limit(name: str, parse: Parse, metavar: str, text: str, title: str | None = None) -> Parameter:
    """Return the option of a limit that ``none`` removes."""
    return option(name, str, parser=parse, metavar=metavar, help=text, rich_help_panel=title)


def switch(name: str, flags: str, text: str) -> Parameter:
    """Return the option of two flags that exclude each other, such as ``--enable/--disable``."""

    def one(values: list[bool] | None) -> list[bool] | None:
        if values and len(set(values)) > 1:
            raise BadParameter("the flags exclude each other", param_hint=flags)
        return values

    return option(name, list[bool], flags, callback=one, metavar="", help=text)


def switched(values: list[bool] | None) -> bool | None:
    """Return the value of a :func:`switch`; None if it is not given."""
    return values[-1] if values else None


def contract_options(title: str, prefix: str = "") -> list[Parameter]:
    """Return the options of a quota; ``prefix`` begins their names."""
    title += " (none removes a limit)"
    return [
        limit(prefix + name, parse, metavar, text, title) for name, parse, metavar, text in CONTRACT
    ]


def contract_of(given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the fields of a quota that were given."""
    return body_of(given, *(name for name, *_ in CONTRACT), prefix=prefix)


def body_of(given: Mapping[str, Any], *names: str, prefix: str = "") -> dict[str, Any]:
    """Return those of the named fields that were given; ``prefix`` begins the names of their flags."""
    values = {name: given[prefix + name] for name in names}
    return {
        name: None if value is _REMOVED else value
        for name, value in values.items()
        if value is not None
    }
