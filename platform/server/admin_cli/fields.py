"""Flags that become fields of a body: limits, weights, names. ``none`` removes a limit."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

NONE = "none"
Parse = Callable[[str], Any]


def _or_none(parse: Parse, what: str) -> Parse:
    def parsed(text: str) -> Any:
        if text == NONE:
            return None
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}, or none") from None

    return parsed


def _models(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


WHOLE = _or_none(int, "a whole number")
NUMBER = _or_none(float, "a number")
TEXT = _or_none(str, "a text")

CONTRACT: tuple[tuple[str, Parse, str, str], ...] = (
    ("rpm_limit", WHOLE, "N", "calls in any 60 seconds"),
    ("tpm_limit", WHOLE, "N", "prompt and output tokens in any 60 seconds"),
    ("max_parallel_requests", WHOLE, "N", "calls that wait or run at a time"),
    ("max_budget", NUMBER, "AMOUNT", "hard end of the money for each period"),
    ("soft_budget", NUMBER, "AMOUNT", "soft end of the money for each period"),
    ("budget_duration", TEXT, "PERIOD", "period of the budgets: 1h, 1d, 7d, 1mo, ..."),
    ("soft_end", TEXT, "WHAT", "beyond the soft end: warn, or finish_runs"),
    ("allowed_models", _or_none(_models, "names"), "A,B", "models that calls may request"),
)


def flag(name: str) -> str:
    """Return the flag of a field."""
    return "--" + name.replace("_", "-")


def add_contract(parser: argparse.ArgumentParser, title: str, prefix: str = "") -> None:
    """Add the flags of a quota; ``prefix`` begins their names."""
    group = parser.add_argument_group(title, "`none` removes a limit.")
    for name, parse, metavar, text in CONTRACT:
        group.add_argument(
            flag(prefix + name),
            type=parse,
            metavar=metavar,
            default=argparse.SUPPRESS,
            help=text,
        )


def contract_of(arguments: argparse.Namespace, prefix: str = "") -> dict[str, Any]:
    """Return the fields of a quota that were given."""
    return {
        name: getattr(arguments, prefix + name)
        for name, *_ in CONTRACT
        if hasattr(arguments, prefix + name)
    }


def given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return those of the named arguments that were given."""
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
