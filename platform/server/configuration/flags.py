"""The settings as people see them: flags of ``fairserve serve``, and the tables of the guide.

Both are derived from :data:`fairserve.platform.server.settings.FIELDS`, so that a setting without
description, flag or documentation cannot exist. ``python -m
fairserve.platform.server.configuration.flags > docs/guide/settings.md`` writes the guide.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from inspect import Parameter
from typing import Any

from pydantic import AliasChoices

from fairserve.platform.base.command_line import option
from fairserve.platform.server.configuration.reload import RELOADABLE
from fairserve.platform.server.configuration.topics import TOPICS, WHEN
from fairserve.platform.server.settings import FIELDS

SECRETS_NOTE = (
    "Secrets have no flag: FAIRSERVE_SECRET_KEY, FAIRSERVE_SECRET_KEY_PREVIOUS, FAIRSERVE_ADMIN_KEY,"
    " FAIRSERVE_OIDC_CLIENT_SECRET, or the configuration file."
)
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


def all_flags() -> list[Parameter]:
    """Return the options of all settings in the order of their topics."""
    return [flag for topic, names in TOPICS.items() for flag in flag_options(*names, topic=topic)]


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
    if "metavar" in _presentation(field):
        return str(_presentation(field)["metavar"])
    last = name.rsplit("-", 1)[-1]
    if FIELDS[field].annotation in (int, float) and last not in _UNITS:
        return "N"
    return _UNITS.get(last, last.upper())


def guide() -> str:
    """Return the text of docs/guide/settings.md."""
    from fairserve.platform.tenancy.system.parameters import PUBLIC, describe
    from fairserve.platform.tenancy.system.settings import TuningSettings

    lines = [
        "# Settings",
        "",
        "Written by `python -m fairserve.platform.server.configuration.flags`; a test keeps it current.",
        "",
        "A flag of `fairserve serve` wins over its environment variable, that over the",
        "[configuration file](configuration.md) (`--config`), and that over the default. The file has",
        "settings by the names of the first column. Secrets have no flag, because a process list shows",
        "flags. Units end a name: `_s` seconds, `_tokens`, `_bytes`, `_days`. A setting that applies at",
        "*reload* can change in the file while the server runs, and applies after SIGHUP. A server",
        "that is started with a removed setting does not start; the error names what replaces it.",
    ]
    for topic, fields in TOPICS.items():
        lines += ["", f"## {topic}", ""]
        lines += ["| setting | flag | environment | default | applies at | meaning | change it |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [_row(field) for field in fields]
    lines += ["", "## Parameters of the system", ""]
    lines += [
        "Of throttling, order and placement: `--set NAME=VALUE`, the setting `system_options`, or",
        "[`PUT /admin/throttling`](operator.md) and the console while the server runs. A system has",
        "those of its policies. The defaults are those of `fairserve`, where it has the parameter.",
        "",
        "| parameter | default | unit | meaning |",
        "|---|---|---|---|",
    ]
    own = {each.name: each.default for each in describe(TuningSettings(), "fairserve", {})}
    for name, (unit, meaning) in PUBLIC.items():
        default = str(own.get(name, "of the policy")).replace("None", "null")
        lines.append(f"| `{name}` | {default} | {unit} | {meaning} |")
    return "\n".join(lines) + "\n"


def _row(field: str) -> str:
    name = flag(field)
    environment = ", ".join(f"`{variable}`" for variable in environment_names(field))
    shown = f"`{name}`" if name else "none"
    description = str(FIELDS[field].description)
    change = "reload" if field in RELOADABLE else "restart"
    cells = (
        f"`{field}`",
        shown,
        environment,
        default_text(field),
        change,
        description,
        WHEN[field],
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(guide())
