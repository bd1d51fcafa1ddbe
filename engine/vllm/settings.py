"""Settings of the plug-in: the local scheduler, its options, and the victims of preemption.

vLLM constructs its scheduler itself, so there are no flags: settings are read from the environment
of the server, or from a JSON or TOML file named by ``FAIRSERVE_SCHEDULER_CONFIG``, for example

    local_scheduler = "dlpm"
    victim = "fair"
    [options]
    quantum = 5000

The environment takes precedence, option by option. An invalid value raises ValueError with the
allowed ones.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from fairserve.engine.local_scheduler import read_options

Victim = Literal["fair", "latest"]

SCHEDULER = "FAIRSERVE_LOCAL_SCHEDULER"
OPTIONS = "FAIRSERVE_SCHEDULER_OPTIONS"
VICTIM = "FAIRSERVE_VICTIM"
CONFIG = "FAIRSERVE_SCHEDULER_CONFIG"


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """Settings of the plug-in.

    ``victim`` is the call to preempt when blocks run short: one of the client furthest over its share
    (``fair``), or the one admitted last (``latest``, vLLM's choice).
    """

    local_scheduler: str = "dlpm"
    options: Mapping[str, object] = field(default_factory=dict)
    victim: Victim = "fair"


def read_settings(environment: Mapping[str, str]) -> PluginSettings:
    """Return the settings of this environment. Raises ValueError, and OSError for the file."""
    values = _read_file(environment.get(CONFIG, ""))
    name = environment.get(SCHEDULER) or values.get("local_scheduler", "dlpm")
    if not isinstance(name, str):
        raise ValueError(f"local_scheduler is {name!r}; allowed: a name")
    options = values.get("options", {})
    if not isinstance(options, dict):
        raise ValueError(f"options are {options!r}; allowed: names with values")
    items = [item for item in environment.get(OPTIONS, "").split(",") if item.strip()]
    try:
        given = read_options(items)
    except ValueError as error:
        raise ValueError(f"{OPTIONS}: {error}") from error
    victim = environment.get(VICTIM) or values.get("victim", "fair")
    if victim not in get_args(Victim):
        allowed = ", ".join(get_args(Victim))
        raise ValueError(f"victim is {victim!r}; allowed: {allowed}")
    return PluginSettings(name, {**options, **given}, cast("Victim", victim))


def _read_file(name: str) -> dict[str, object]:
    if not name:
        return {}
    text = Path(name).read_text()
    try:
        values = tomllib.loads(text) if name.endswith(".toml") else json.loads(text)
    except ValueError as error:
        raise ValueError(f"{CONFIG} {name}: {error}") from error
    known = ("local_scheduler", "options", "victim")
    for key in values if isinstance(values, dict) else ["a list or a value"]:
        if key not in known:
            raise ValueError(f"{CONFIG} {name} has {key!r}; allowed: {', '.join(known)}")
    return dict(values)
