"""How the settings appear to people: as flags of ``fairserve serve``, and as the guide's table.

Both are derived from the fields of :class:`fairserve.platform.server.settings.Settings`, so that a
setting without description, flag or documentation cannot exist. ``python -m
fairserve.platform.server.settings_flags > docs/guide/settings.md`` writes the guide.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from pydantic import AliasChoices, ValidationError

from fairserve.platform.base.option_pairs import parse_options
from fairserve.platform.server.settings import FIELDS, Settings


def environment_names(field: str) -> tuple[str, ...]:
    """The environment variables of a setting, the one that wins first."""
    alias = FIELDS[field].validation_alias
    if isinstance(alias, AliasChoices):
        return tuple(str(choice) for choice in alias.choices)
    return (f"FAIRSERVE_{field.upper()}",)


def flag(field: str) -> str | None:
    """The flag of a setting; None for a secret, which a process list would show."""
    if "SecretStr" in str(FIELDS[field].annotation):
        return None
    return str(_presentation(field).get("flag", "--" + field.replace("_", "-")))


def default_text(field: str) -> str:
    """The default of a setting, as people read it."""
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


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag per setting; its help names description, default and environment."""
    for field, info in FIELDS.items():
        name = flag(field)
        if name is None:
            continue
        help_text = (
            f"{info.description} Default: {default_text(field)}. "
            f"Environment: {', '.join(environment_names(field))}."
        ).replace("%", "%%")
        if info.annotation is bool:
            parser.add_argument(
                name,
                dest=field,
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=help_text,
            )
        elif field == "system_options":
            parser.add_argument(
                name,
                dest=field,
                action="append",
                metavar="KEY=VALUE",
                default=argparse.SUPPRESS,
                help=help_text,
            )
        else:
            parser.add_argument(
                name,
                dest=field,
                metavar=name.rsplit("-", 1)[-1].upper(),
                default=argparse.SUPPRESS,
                help=help_text,
            )


def settings_from(arguments: argparse.Namespace) -> Settings:
    """Settings from parsed flags over the environment.

    Raises ValueError with one line that names each wrong setting, never its value.
    """
    given = {name: value for name, value in vars(arguments).items() if name in FIELDS}
    if isinstance(given.get("system_options"), list):
        given["system_options"] = parse_options(given["system_options"])
    try:
        return Settings(**given)
    except ValidationError as error:
        raise ValueError("; ".join(_problem(part) for part in error.errors())) from error


def _problem(error: Any) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    where = error["loc"][1:2]  # after the room; what is wrong with several settings has no name
    return f"{str(where[0]).removeprefix('FAIRSERVE_').lower()}: {message}" if where else message


def guide() -> str:
    """The text of docs/guide/settings.md."""
    lines = [
        "# Settings",
        "",
        "Written by `python -m fairserve.platform.server.settings_flags`; a test keeps it current.",
        "",
        "A flag of `fairserve serve` wins over its environment variable. Secrets have no flag,",
        "because a process list shows flags. Units end a name: `_s` seconds, `_tokens`, `_bytes`,",
        "`_days`.",
        "",
        "| setting | flag | environment | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for field, info in FIELDS.items():
        name = flag(field)
        environment = ", ".join(f"`{variable}`" for variable in environment_names(field))
        shown = f"`{name}`" if name else "none"
        cells = (f"`{field}`", shown, environment, default_text(field), str(info.description))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(guide())
