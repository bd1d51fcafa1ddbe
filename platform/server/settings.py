"""All settings of the server: those of each room, composed, and its own.

A field ``max_body_bytes`` is the flag ``--max-body-bytes``, ``FAIRSERVE_MAX_BODY_BYTES``, and a name in
the configuration file; :mod:`fairserve.platform.server.configuration.sources` has their precedence.
``DATABASE_URL`` and ``REDIS_URL`` are read without the prefix, too.
Secrets have no flag, because a process list shows flags. Names are unique across rooms, so that
:class:`Settings` takes them flat: ``Settings(port=0, data_dir=folder)``. A room reads its own part.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from fairserve.platform.background.settings import BackgroundSettings
from fairserve.platform.base.settings import RoomSettings, empty_is_none
from fairserve.platform.console.settings import ConsoleSettings
from fairserve.platform.control.settings import ControlSettings
from fairserve.platform.db.settings import DbSettings
from fairserve.platform.fleet.settings import FleetSettings
from fairserve.platform.monitoring.settings import MonitoringSettings
from fairserve.platform.picker.settings import PickerSettings
from fairserve.platform.reporting.settings import ReportingSettings
from fairserve.platform.serving.settings import ServingSettings
from fairserve.platform.tenancy.settings import TenancySettings
from fairserve.platform.tenancy.system.settings import TuningSettings

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


class ServerSettings(RoomSettings):
    """Address, bounds of connections and requests, and log level."""

    config: Annotated[Path | None, BeforeValidator(empty_is_none)] = Field(
        None,
        description="YAML file with settings and the fleet (docs/guide/configuration.md). SIGHUP "
        "reloads it.",
        json_schema_extra={"metavar": "FILE"},
    )
    host: str = Field("127.0.0.1", description="Address that the API listens on.")
    port: int = Field(8000, ge=0, le=65535, description="Port of the API; 0 takes a free one.")
    max_connections: int = Field(
        8_000,
        ge=1,
        le=1_000_000,
        description="Client connections at a time; more answer 503. Fewer if the hard limit of "
        "open files does not allow two for each beside the server's own 256.",
    )
    max_connections_per_address: int = Field(
        500,
        ge=1,
        le=1_000_000,
        description="Connections of one client address (for IPv6, one /64 network) at a time; more "
        "answer 429. At most half of all if the limit of open files lowers "
        "max_connections.",
    )
    max_body_bytes: int = Field(
        8 * 1024 * 1024,
        ge=1024,
        le=1 << 32,
        description="Largest request body; larger ones answer 413. Text-only models have a lower "
        "limit: 64 KiB and 16 bytes for each token of the context.",
    )
    max_body_memory_bytes: int = Field(
        512 * 1024 * 1024,
        ge=1024,
        le=1 << 44,
        description="Total size of the bodies of requests in progress, waiting calls included; "
        "more answer 503. One tenant may have max_tenant_share of it; more answer 429. "
        "Each bound is at least one max_body_bytes.",
    )
    log_level: LogLevel = Field("info", description="debug, info, warning or error.")
    log_format: LogFormat = Field(
        "text", description="Form of a log line on standard error: text, or json (an object each)."
    )
    metrics_host: str = Field("127.0.0.1", description="Address of metrics_port.")
    metrics_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port that answers /metrics without a key; 0: none. With an admin key the API's "
        "port answers it, too.",
    )
    metrics_top_clients: int = Field(
        10,
        ge=0,
        le=1000,
        description="Clients whose tenant, app and user are labels of metrics, the most served ones; "
        "all others are one series.",
    )


class Settings(BaseModel):
    """The configuration of one server process. Immutable; ``repr`` shows no secret and no URL."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    server: ServerSettings
    db: DbSettings
    tuning: TuningSettings
    fleet: FleetSettings
    control: ControlSettings
    monitoring: MonitoringSettings
    serving: ServingSettings
    picker: PickerSettings
    tenancy: TenancySettings
    reporting: ReportingSettings
    background: BackgroundSettings
    console: ConsoleSettings

    def __init__(self, **values: Any) -> None:
        """``values`` are settings by their own names; the environment gives those that are left out.

        Raises ValidationError, which names the room and the setting, for what is wrong or unknown.
        """
        rooms: dict[str, Any] = {room: {} for room in ROOMS}
        for name, value in values.items():
            if name in ROOM_OF:
                rooms[ROOM_OF[name]][name] = value
            else:
                rooms[name] = value  # rejected
        super().__init__(**rooms)

    def changed(self, **values: Any) -> Self:
        """Return a copy with other values of some settings, which are not checked."""
        changes: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            changes.setdefault(ROOM_OF[name], {})[name] = value
        parts = {
            room: getattr(self, room).model_copy(update=update) for room, update in changes.items()
        }
        return self.model_copy(update=parts)


ROOMS: Mapping[str, type[RoomSettings]] = MappingProxyType(
    {
        room: cast("type[RoomSettings]", info.annotation)
        for room, info in Settings.model_fields.items()
    }
)
"""The class of each room's settings."""
FIELDS: Mapping[str, FieldInfo] = MappingProxyType(
    {name: info for part in ROOMS.values() for name, info in part.model_fields.items()}
)
"""All settings by their names."""
ROOM_OF: Mapping[str, str] = MappingProxyType(
    {name: room for room, part in ROOMS.items() for name in part.model_fields}
)
"""The room of each setting."""
