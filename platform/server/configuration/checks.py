"""Check all settings together with the fleet, and show the effective ones with their sources.

What depends on the machine, such as a port in use or a database that is away, is checked at the start
and by ``fairserve doctor``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from fairserve.engine.torch.model_hub import check_model
from fairserve.platform.base.config_file import FLEET
from fairserve.platform.console.oidc.loading import load_provider
from fairserve.platform.db.engine import connect, normalise_url
from fairserve.platform.db.key_hash import require_secret_key
from fairserve.platform.db.settings import DbSettings
from fairserve.platform.fleet.fleet import Desired, FleetPart, clashes, merge
from fairserve.platform.fleet.fleet_file import FleetFileError, read_fleet
from fairserve.platform.fleet.static_workers import static_fleet
from fairserve.platform.monitoring.tracing.loading import tracing_class
from fairserve.platform.server.configuration.fleet_section import fleet_parser, wrong_settings
from fairserve.platform.server.configuration.sources import Layers, SettingsError
from fairserve.platform.server.configuration.topics import TOPICS
from fairserve.platform.server.settings import ROOM_OF, ServerSettings, Settings
from fairserve.platform.serving.files.store import filesystem_at
from fairserve.platform.tenancy.system.parameters import configured_system

MASK = "***"
_PASSWORD = re.compile(r"(//[^/@\s:]*):[^/@\s]*@")
"""The user and the password in a URL."""
EVERY_ADDRESS = {"", "0.0.0.0", "::"}  # noqa: S104  compared with, not bound


def checked_settings(layers: Layers) -> Settings:
    """Return the settings, with which a server can start. Raises SettingsError with all problems."""
    settings, problems = layers.read()
    problems += _rejected(settings)
    if problems:
        raise SettingsError(problems)
    return settings


def part_problems(settings: Settings) -> Iterator[str]:
    """Yield why parts of a server cannot be made with settings that are valid one by one."""
    return _errors_of(
        lambda: configured_system(settings.tuning),
        lambda: load_provider(settings.console),
        lambda: tracing_class(settings.monitoring),
        lambda: filesystem_at(settings.serving.file_store_url),
        lambda: _check_redis_url(settings.background.redis_url),
    )


def role_problems(settings: Settings) -> dict[str, str]:
    """Return why servers with the role cannot share an order and a database, by setting."""
    role = settings.control.role
    problems = {}
    if role != "all" and not settings.background.redis_url:
        problems["redis_url"] = "redis_url must name the Redis that the servers share"
    if role != "all" and settings.db.embedded_database:
        problems["database_url"] = (
            "database_url must name the PostgreSQL database that the servers share"
        )
    return {name: f"role is {role}: {problem}" for name, problem in problems.items()}


def _rejected(settings: Settings) -> Iterator[str]:
    """Yield why a server cannot start with settings that are valid one by one."""
    yield from part_problems(settings)
    yield from _errors_of(
        lambda: _check_data_dir(settings.db.data_dir),
        lambda: _check_database_url(settings.db),
        lambda: require_secret_key(settings.db),
        lambda: _check_ports(settings.server),
    )
    yield from role_problems(settings).values()


def _errors_of(*checks: Callable[[], object]) -> Iterator[str]:
    for check in checks:
        try:
            check()
        except ValueError as error:
            yield str(error)


def _check_data_dir(path: Path) -> None:
    """Raise ValueError if the path leads to or through a file, which no folder can replace."""
    existing = next(each for each in (path, *path.absolute().parents) if os.path.exists(each))
    if not existing.is_dir():
        raise ValueError(
            f"the data folder {path} cannot be created: {existing} is not a folder; choose another one"
            " with --data-dir"
        )


def _check_ports(settings: ServerSettings) -> None:
    """Raise ValueError if the API and metrics would listen on one port of one address."""
    hosts = {settings.host, settings.metrics_host}
    one_family = len({":" in host for host in hosts}) == 1
    if (
        settings.metrics_port == settings.port != 0
        and one_family
        and (len(hosts) == 1 or hosts & EVERY_ADDRESS)
    ):
        raise ValueError(f"metrics_port is {settings.port}, as port is; choose another one")


def _check_database_url(settings: DbSettings) -> None:
    """Raise ValueError for a URL that cannot be read, or whose driver is not installed."""
    try:
        normalise_url(settings.effective_database_url)
        if not settings.embedded_database:
            connect(settings.effective_database_url).dispose()
    except ValueError as error:
        raise ValueError(f"database_url: {error}") from error


def _check_redis_url(url: str) -> None:
    """Raise ValueError for a URL of another form. A server without Redis does not load its client."""
    if url:
        from fairserve.platform.base.redis_client import RedisServer

        RedisServer.of(url)


def configured_fleet(settings: Settings, *, alone: bool = False) -> FleetPart:
    """Return the workers of the settings and of the fleet file. Raises FleetFileError.

    ``alone`` as in :func:`fleet_parser`.
    """
    static = static_fleet(settings.fleet)
    path = settings.fleet.fleet_file
    if path is None:
        return static
    part = read_fleet(path, fleet_parser(settings, alone=alone))
    problems = clashes(part, merge({"settings": static}) if static.workers else Desired())
    if problems:
        raise FleetFileError(f"the fleet file {path}: {'; '.join(problems)}")
    return FleetPart((*static.workers, *part.workers), part.aliases, part.tokenizers)


def problems_of(layers: Layers) -> list[str]:
    """Return all problems of settings and fleet, one line each; empty if there are none."""
    settings, problems = layers.read()
    problems += _rejected(settings)
    if layers.file is not None and layers.file.has_fleet:
        problems += [each for each in wrong_settings(layers.file) if each not in problems]
    try:
        part = configured_fleet(settings, alone=True)
    except FleetFileError as error:
        return [*problems, str(error)]
    if not part.workers and settings.fleet.fleet_file is None:
        problems += _embedded_model_problems(settings)
    return problems


def _embedded_model_problems(settings: Settings) -> Iterator[str]:
    """Yield why embedded workers cannot load the model of the settings.

    Weakness: workers that were added through the API are in the database, and their server embeds none.
    """
    model = settings.fleet.model
    if not settings.fleet.workers or settings.control.role != "all":
        return
    try:
        if model:  # else the built-in one
            check_model(model)
    except OSError as error:
        yield f"model: {error}"
    if find_spec("torch") is None:
        yield (
            f"workers is {settings.fleet.workers}: embedded workers need torch: pip install"
            " 'fairserve[torch]', or name other workers; if all are added through the API, set workers"
            " to 0"
        )


def value_of(settings: Settings, name: str) -> Any:
    """Return the effective value of a setting as plain data, with secrets and passwords masked."""
    value = getattr(getattr(settings, ROOM_OF[name]), name)
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return _plain(value)


def masked(text: str) -> str:
    """Return a text without the passwords in its URLs."""
    return _PASSWORD.sub(rf"\1:{MASK}@", text)


def _plain(value: Any) -> Any:
    if isinstance(value, str | Path):
        return masked(str(value))
    return value if isinstance(value, int | float | dict | None) else str(value)


def is_masked(value: Any) -> bool:
    """Return whether a value of :func:`value_of` lacks a secret, so that a file cannot have it."""
    return MASK in (value if isinstance(value, str) else json.dumps(value))


def as_rows(layers: Layers, settings: Settings) -> list[list[str]]:
    """Return name, value and source of each setting, for people."""
    rows = [
        [name, _shown(value_of(settings, name)), _source(layers, name)]
        for names in TOPICS.values()
        for name in names
    ]
    if layers.file is not None and layers.file.has_fleet:
        part = configured_fleet(settings)
        text = f"{len(part.workers)} workers, {len(part.aliases)} aliases"
        rows.append([FLEET, text, layers.file.at(FLEET)])
    return rows


def as_json(layers: Layers, settings: Settings) -> str:
    """Return a configuration file with the effective settings; JSON is YAML. Secrets are left out."""
    return json.dumps({name: value for name, value, _ in _usable(layers, settings)}, indent=2)


def as_yaml(layers: Layers, settings: Settings) -> str:
    """Return a configuration file with the effective settings, their sources, and masked secrets."""
    import yaml

    found = {name: (value, masked) for name, value, masked in _entries(layers, settings)}
    lines: list[str] = []
    for topic, names in TOPICS.items():
        lines += ["", f"# {topic}"]
        for name in names:
            if name not in found:
                continue
            value, masked = found[name]
            text = yaml.safe_dump({name: value}, width=10_000, sort_keys=False).rstrip("\n")
            if masked:
                lines.append(f"# {_source(layers, name)}, not shown:")
                lines += [f"# {line}" for line in text.splitlines()]
            elif "\n" in text:
                lines += [f"# {_source(layers, name)}", text]
            else:
                lines.append(f"{text}  # {_source(layers, name)}")
    if FLEET in found:
        fleet = yaml.safe_dump({FLEET: found[FLEET][0]}, width=10_000, sort_keys=False)
        lines += ["", "# The fleet", fleet.rstrip("\n")]
    return "\n".join(lines[1:]) + "\n"


def _usable(layers: Layers, settings: Settings) -> Iterator[tuple[str, Any, bool]]:
    return (entry for entry in _entries(layers, settings) if not entry[2])


def _entries(layers: Layers, settings: Settings) -> Iterator[tuple[str, Any, bool]]:
    """Yield name, plain value, and whether it is masked, of all that a file may have."""
    has_fleet = layers.file is not None and layers.file.has_fleet
    for names in TOPICS.values():
        for name in names:
            if name == "config" or (name == "fleet_file" and has_fleet):
                continue
            value = value_of(settings, name)
            yield name, value, is_masked(value)
    if layers.file is not None and has_fleet:
        yield FLEET, layers.file.fleet or {}, False


def _source(layers: Layers, name: str) -> str:
    source = layers.source(name)
    if source == "file" and layers.file is not None:
        return layers.file.at(name if name in layers.file.settings else FLEET)
    return source


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "empty"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}={each}" for key, each in value.items()) or "none"
    return str(value)
