"""The settings as people see them: flags of ``fairserve serve``, and the tables of the guide.

Both are derived from :data:`fairserve.platform.server.settings.FIELDS`, so that a setting without
description, flag or documentation cannot exist. ``python -m
fairserve.platform.server.settings_flags > docs/guide/settings.md`` writes the guide.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from inspect import Parameter
from typing import Any

from pydantic import AliasChoices, ValidationError

from fairserve.platform.base.command_line import option
from fairserve.platform.base.option_pairs import parse_options
from fairserve.platform.server.settings import FIELDS, Settings
from fairserve.platform.server.settings_topics import TOPICS

_UNITS = {
    "s": "SECONDS",
    "minutes": "MINUTES",
    "hours": "HOURS",
    "days": "DAYS",
    "bytes": "BYTES",
    "tokens": "TOKENS",
}
"""Placeholders of numbers with a unit, by the end of the flag."""


def environment_names(field: str) -> tuple[str, ...]:
    """Return the environment variables of a setting, the one that wins first."""
    alias = FIELDS[field].validation_alias
    if isinstance(alias, AliasChoices):
        return tuple(str(choice) for choice in alias.choices)
    return (f"FAIRSERVE_{field.upper()}",)


def flag(field: str) -> str | None:
    """Return the flag of a setting; None for a secret, which a process list would show."""
    if "SecretStr" in str(FIELDS[field].annotation):
        return None
    return str(_presentation(field).get("flag", "--" + field.replace("_", "-")))


def default_text(field: str) -> str:
    """Return the default of a setting as text for people."""
    shown = _presentation(field).get("default_text")
    if shown is not None:
        return str(shown)
    default = FIELDS[field].default
    if default is None or default == "":
        return "empty"
    if isinstance(default, bool):
        return "on" if default else "off"
    return str(default)


def _presentation(field: str) -> Mapping[str, Any]:
    found = FIELDS[field].json_schema_extra
    return found if isinstance(found, dict) else {}


def flag_options(*fields: str, topic: str | None = None) -> list[Parameter]:
    """Return the options of settings, without secrets; their help names default and environment."""
    flags = {field: flag(field) for field in fields}
    return [_option(field, name, topic) for field, name in flags.items() if name is not None]


def _option(field: str, name: str, topic: str | None) -> Parameter:
    text = (
        f"{FIELDS[field].description} Default: {default_text(field)}. "
        f"Environment: {', '.join(environment_names(field))}."
    )
    if FIELDS[field].annotation is bool:
        return option(
            field, bool, f"{name}/--no-{name[2:]}", help=text, rich_help_panel=topic, metavar=""
        )
    kind, metavar = (
        (list[str], "KEY=VALUE") if field == "system_options" else (str, _metavar(field, name))
    )
    return option(field, kind, name, help=text, rich_help_panel=topic, metavar=metavar)


def _metavar(field: str, name: str) -> str:
    last = name.rsplit("-", 1)[-1]
    if FIELDS[field].annotation in (int, float) and last not in _UNITS:
        return "N"
    return _UNITS.get(last, last.upper())


def settings_from(flags: Mapping[str, Any]) -> Settings:
    """Return the settings of parsed flags, which are None if not given, over the environment.

    Raises ValueError with one line that names each wrong setting, never its value.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if isinstance(given.get("system_options"), list):
        given["system_options"] = parse_options(given["system_options"])
    try:
        return Settings(**given)
    except ValidationError as error:
        raise ValueError("; ".join(_problem(part) for part in error.errors())) from error


def _problem(error: Any) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    name = error["loc"][1:2]  # after the room; a problem of several settings has none
    return f"{str(name[0]).removeprefix('FAIRSERVE_').lower()}: {message}" if name else message


def guide() -> str:
    """Return the text of docs/guide/settings.md."""
    lines = [
        "# Settings",
        "",
        "Written by `python -m fairserve.platform.server.settings_flags`; a test keeps it current.",
        "",
        "A flag of `fairserve serve` wins over its environment variable. Secrets have no flag,",
        "because a process list shows flags. Units end a name: `_s` seconds, `_tokens`, `_bytes`,",
        "`_days`.",
    ]
    for topic, fields in TOPICS.items():
        lines += ["", f"## {topic}", ""]
        lines += ["| setting | flag | environment | default | meaning |", "|---|---|---|---|---|"]
        lines += [_row(field) for field in fields]
    return "\n".join(lines) + "\n"


def _row(field: str) -> str:
    name = flag(field)
    environment = ", ".join(f"`{variable}`" for variable in environment_names(field))
    shown = f"`{name}`" if name else "none"
    description = str(FIELDS[field].description)
    cells = (f"`{field}`", shown, environment, default_text(field), description)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(guide())
