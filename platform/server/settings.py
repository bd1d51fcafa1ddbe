"""Every setting of the server, in one class: flags, environment and documentation come from it.

A field ``max_body_bytes`` is the flag ``--max-body-bytes`` and ``FAIRSERVE_MAX_BODY_BYTES``; a flag
wins over the environment. ``DATABASE_URL`` and ``REDIS_URL`` are read without the prefix, too.
Secrets have no flag, because a process list shows flags. ``docs/guide/settings.md`` is written by
:mod:`fairserve.platform.server.settings_flags`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from fairserve.platform.base.client_address import Network, parse_networks
from fairserve.platform.base.option_pairs import parse_options
from fairserve.platform.server.settings_http import HttpSettings

if TYPE_CHECKING:
    from fairserve.scheduling.system import SystemConfig

CacheIsolation = Literal["tenant", "app", "user", "none"]

LogLevel = Literal["debug", "info", "warning", "error"]

MIN_SECRET_CHARS = 32


def default_data_dir() -> Path:
    """``$XDG_DATA_HOME/fairserve``, or ``~/.local/share/fairserve``."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "fairserve"


class Settings(HttpSettings):
    """The configuration of one server process. Immutable; ``repr`` shows no secret and no URL."""

    model_config = SettingsConfigDict(
        env_prefix="FAIRSERVE_",
        frozen=True,
        extra="forbid",
        validate_default=False,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
    )

    host: str = Field("127.0.0.1", description="Address that the API listens on.")
    port: int = Field(8000, ge=0, le=65535, description="Port of the API; 0 takes a free one.")
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Addresses and CIDR networks of the proxies in front of the server, separated by "
        "commas. Only their X-Forwarded-For and X-Forwarded-Proto are believed; their connections have "
        "no limit per address, and each of their requests counts for its client.",
        json_schema_extra={"default_text": "none"},
    )
    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="Folder of the embedded database, the journal, the recording, the generated "
        "secret key, the workers' sockets and the built-in model.",
        json_schema_extra={"default_text": "$XDG_DATA_HOME/fairserve or ~/.local/share/fairserve"},
    )
    database_url: str = Field(
        "",
        validation_alias=AliasChoices("FAIRSERVE_DATABASE_URL", "DATABASE_URL"),
        repr=False,
        description="SQLAlchemy URL of the database (postgresql:// or sqlite:///). Empty: a SQLite "
        "file in data_dir.",
    )
    secret_key: SecretStr | None = Field(
        None,
        description="Key of the keyed hash under which API keys are stored, at least "
        f"{MIN_SECRET_CHARS} characters. With the embedded database it is generated once, into "
        "data_dir/secret.key.",
    )
    secret_key_previous: SecretStr | None = Field(
        None,
        description="The secret key before a rotation. API keys stored under it are accepted and "
        "stored again under secret_key when they are used.",
    )
    admin_key: SecretStr | None = Field(
        None,
        description="The first admin key, at least 32 characters. Empty: one is created and "
        "printed once, at the first start.",
    )

    system: str = Field(
        "fairserve",
        description="How calls are throttled, ordered and placed: a name of "
        "fairserve.scheduling.registry.SYSTEMS. A setting made through /admin/throttling wins.",
    )
    system_options: Annotated[dict[str, Any], NoDecode] = Field(
        default_factory=dict,
        description="Options of the system's policies, such as feeder.locality_slack=4: a JSON "
        "object, or pairs separated by commas; on the command line --set key=value, repeatable.",
        json_schema_extra={"flag": "--set", "default_text": "none"},
    )
    local_scheduler: str = Field(
        "",
        description="Scheduler inside the embedded workers, a name of "
        "fairserve.scheduling.registry.LOCAL_SCHEDULERS. Empty: the one of the system.",
    )
    overload_high: float = Field(
        2.0,
        gt=0,
        le=1000,
        description="Demand over KV capacity at which the workers count as overloaded.",
    )
    overload_low: float = Field(
        1.2,
        gt=0,
        le=1000,
        description="Demand over KV capacity at which an overload ends; at most overload_high.",
    )
    feed_window: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of a worker's KV capacity that may be queued at it or on its way, in "
        "systems that have a feed window. Empty: the system's own.",
    )
    cache_isolation: CacheIsolation = Field(
        "tenant",
        description="Who shares cached prefixes: the users of a tenant (tenant), those of one of its "
        "apps (app), nobody with another user (user), or all tenants (none), who can then tell from "
        "timings what others asked.",
    )
    immunity_factor: float = Field(
        2.0,
        ge=1,
        le=1000,
        description="A run is no longer immune to throttling beyond this multiple of the calls or "
        "tokens of its app's longest usual run.",
    )

    model: str = Field(
        "",
        description="Checkpoint folder or hub id that the embedded workers load. Empty: the small "
        "built-in model with random weights. With worker_urls: the tokenizer of their model.",
    )
    workers: int = Field(2, ge=0, le=256, description="Embedded worker processes to start.")
    worker_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Base URLs of external workers, separated by commas; their ids are w0, w1, ... "
        "Embedded workers are started only where no external ones are named here, in a fleet file "
        "or through the admin API.",
        json_schema_extra={"default_text": "none"},
    )
    fleet_file: Path | None = Field(
        None,
        description="JSON file with external workers, aliases and tokenizers, followed while the "
        "server runs (docs/guide/fleet.md).",
    )
    kv_events: bool = Field(
        True,
        description="Let embedded workers publish what becomes of their prefix caches, and follow all "
        "workers that do, so that the router knows what is cached where.",
    )
    worker_kv_events: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Where external workers publish KV events that do not say it themselves (vLLM): "
        "for each of worker_urls the endpoint, a space, and the replay endpoint, such as "
        "tcp://10.0.0.5:5557 tcp://10.0.0.5:5558; separated by commas, empty for none.",
        json_schema_extra={"default_text": "none"},
    )
    worker_kv_tokens: int = Field(
        16_384, ge=256, le=1 << 31, description="KV cache of an embedded worker, in tokens."
    )
    worker_max_batch: int = Field(
        16, ge=1, le=4096, description="Sequences that an embedded worker runs at once."
    )

    max_queue_wait_s: float = Field(
        120.0, gt=0, le=86_400, description="A call that waited this long in the queue answers 503."
    )
    max_queued_calls: int = Field(
        10_000,
        ge=1,
        le=10_000_000,
        description="Calls that may wait for a model; more answer 503 at once.",
    )
    max_tenant_share: float = Field(
        1 / 4,
        gt=0,
        le=1,
        description="Share of the calls that may wait for a model, and of the open interactions, that "
        "one tenant may have; more answer 429.",
    )
    max_user_share: float = Field(
        1 / 16,
        gt=0,
        le=1,
        description="Share of these calls and interactions that one user may have; more answer 429.",
    )
    user_openings_per_minute: int = Field(
        600,
        ge=1,
        le=1_000_000,
        description="Interactions that one user may open without a call, or as programs, within a "
        "minute; more answer 429.",
    )
    max_body_bytes: int = Field(
        8 * 1024 * 1024,
        ge=1024,
        le=1 << 32,
        description="Largest request body; larger answer 413. Models that take text only have a lower "
        "limit: 64 KiB and 16 bytes for each token of the context.",
    )
    max_body_memory_bytes: int = Field(
        512 * 1024 * 1024,
        ge=1024,
        le=1 << 44,
        description="Bodies of requests in progress, waiting calls included, in all; more answer 503. "
        "One tenant may have max_tenant_share of it; more answer 429. At least one max_body_bytes each.",
    )
    keepalive_s: float = Field(
        15.0,
        gt=0,
        le=3600,
        description="Interval of the comments sent to a streaming client while its call is queued.",
    )
    stream_check_s: float = Field(
        5.0,
        gt=0,
        le=5,
        description="Interval at which the key or sign-in behind an open stream of events is checked "
        "again; the stream ends if it no longer holds.",
    )
    client_buffer_bytes: int = Field(
        256 * 1024,
        ge=1024,
        le=1 << 30,
        description="Part of an answer that is kept for a client which reads slowly, for each call; a "
        "fuller buffer makes the call wait for its client.",
    )
    client_write_timeout_s: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="A client that takes nothing of its answer for this long, or makes its call wait "
        "for this long in all, loses its connection; its call is cancelled and recorded as such.",
    )
    lease_s: float = Field(
        60.0,
        gt=0,
        le=86_400,
        description="A granted call without progress for this long is ended and accounted.",
    )
    database_lease_s: float = Field(
        60.0,
        ge=3,
        le=3600,
        description="A server that the database has not answered for this long answers new calls 503. "
        "Another server takes the database over after as long.",
    )
    accept_newer_schema: bool = Field(
        False,
        description="Start on a database whose schema is newer than this version, if this version "
        "can read it: during a rolling upgrade, or after going back from one.",
    )
    drain_timeout_s: float = Field(
        30.0, ge=0, le=86_400, description="How long a stopping server lets running calls finish."
    )
    default_max_tokens: int = Field(
        256,
        ge=1,
        le=1 << 24,
        description="Output limit of a call that names none, within the model's context.",
    )
    interaction_idle_timeout_s: float = Field(
        300.0,
        gt=0,
        le=7 * 86_400,
        description="A run without a call for this long ends, where its app names no time-out.",
    )

    interaction_reopen_grace_s: float = Field(
        600.0,
        ge=0,
        le=7 * 86_400,
        description="A call that comes at most so long after its run idled to its end reopens it.",
    )
    infer_parents: bool = Field(
        True,
        description="Calls that name no parents are placed in their run by their messages and by time. "
        "Off: such a call is a root.",
    )
    run_from_traceparent: bool = Field(
        False,
        description="A call for which nothing else names a run belongs to that of its W3C traceparent.",
    )

    program_max_nodes: int = Field(
        1_000, ge=1, le=5_000, description="Nodes of a declared program at most."
    )
    program_parallel_calls: int = Field(
        32,
        ge=1,
        le=10_000,
        description="Calls of one program that are queued or running at a time at most.",
    )
    program_time_limit_s: float = Field(
        3600.0,
        gt=0,
        le=30 * 86_400,
        description="A program that takes longer is cancelled, time for which the server was stopped "
        "included.",
    )
    program_max_live: int = Field(
        1_000, ge=1, le=1_000_000, description="Programs under way at most; more answer 503."
    )
    program_max_live_per_app: int = Field(
        200, ge=1, le=1_000_000, description="Programs of one app under way; more answer 429."
    )
    program_max_bytes: int = Field(
        512 * 1024 * 1024,
        ge=1024 * 1024,
        le=1 << 40,
        description="Declarations and outputs of the programs under way; at this size new ones answer "
        "503.",
    )
    program_retention_days: float = Field(
        7.0,
        gt=0,
        le=3650,
        description="Days after its end for which a program and its outputs can be read.",
    )

    idempotency_retention_s: float = Field(
        3600.0, gt=0, le=7 * 86_400, description="How long an Idempotency-Key is remembered."
    )
    idempotency_max_entries: int = Field(
        10_000, ge=1, le=10_000_000, description="Idempotency keys remembered at most."
    )
    idempotency_max_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        le=1 << 36,
        description="Answers kept for repeated Idempotency-Keys, in all.",
    )
    journal_segment_bytes: int = Field(
        16 * 1024 * 1024, ge=4096, le=1 << 32, description="Size at which the journal starts anew."
    )
    journal_max_bytes: int = Field(
        1024 * 1024 * 1024,
        ge=4096,
        le=1 << 40,
        description="Journal kept while the database is away; at this size new calls answer 503.",
    )
    ledger_retention_days: int = Field(
        90,
        ge=1,
        le=36_500,
        description="Days that calls, runs, refusals, the audit log, and deleted tenants and apps"
        " are kept.",
    )

    trace_recording: bool = Field(
        True,
        description="Record token counts, times, dependencies and salted block keys of calls for "
        "`fairserve trace export`; never text. Off: what was recorded is deleted at the start.",
    )
    trace_max_bytes: int = Field(
        128 * 1024 * 1024,
        ge=1024 * 1024,
        le=1 << 36,
        description="Size of the recording; what is oldest is deleted.",
    )
    trace_retention_days: float = Field(
        7.0, gt=0, le=3650, description="Days after which recorded calls are deleted at the latest."
    )

    log_level: LogLevel = Field("info", description="debug, info, warning or error.")
    api_docs: bool = Field(True, description="Serve the API's description at /docs.")

    @field_validator("system_options", mode="before")
    @classmethod
    def _parse_options(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = value.strip()
        if text.startswith("{"):
            return json.loads(text)
        return parse_options(part for part in text.split(",") if part.strip())

    @field_validator("feed_window", "fleet_file", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("worker_urls", "worker_kv_events", "trusted_proxies", mode="before")
    @classmethod
    def _parse_list(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = value.strip()
        if text.startswith("["):
            return json.loads(text)
        return tuple(part.strip() for part in text.split(",")) if text else ()

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_networks(value)
        return value

    @field_validator("worker_kv_events")
    @classmethod
    def _check_endpoints(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pair in value:
            endpoints = pair.split()
            if len(endpoints) > 2 or not all(e.startswith(("tcp://", "ipc://")) for e in endpoints):
                raise ValueError("each is one or two endpoints, tcp://HOST:PORT or ipc://PATH")
        return value

    @field_validator("worker_urls")
    @classmethod
    def _check_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        value = tuple(url for url in value if url)
        for url in value:
            if not url.startswith(("http://", "https://")):
                raise ValueError("a worker URL starts with http:// or https://")
        if len(set(value)) != len(value):
            raise ValueError("a worker URL is given twice")
        return tuple(url.rstrip("/") for url in value)

    @field_validator("secret_key", "secret_key_previous", "admin_key")
    @classmethod
    def _check_secret(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value():
            return None
        if not MIN_SECRET_CHARS <= len(value.get_secret_value()) <= 256:
            raise ValueError(f"must have {MIN_SECRET_CHARS} to 256 characters")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.overload_low > self.overload_high:
            raise ValueError("overload_low must not be above overload_high")
        if self.journal_segment_bytes > self.journal_max_bytes:
            raise ValueError("journal_segment_bytes must not be above journal_max_bytes")
        if self.worker_kv_events and len(self.worker_kv_events) != len(self.worker_urls):
            raise ValueError("worker_kv_events needs as many entries as worker_urls")
        if self.secret_key_previous is not None and self.secret_key is None:
            raise ValueError("secret_key_previous needs secret_key")
        return self

    @property
    def proxy_networks(self) -> tuple[Network, ...]:
        """``trusted_proxies`` as :mod:`fairserve.platform.base.client_address` takes them."""
        return parse_networks(self.trusted_proxies)

    @property
    def effective_database_url(self) -> str:
        """``database_url``, or that of the SQLite file in ``data_dir``."""
        return self.database_url or f"sqlite:///{self.data_dir / 'fairserve.sqlite3'}"

    @property
    def embedded_database(self) -> bool:
        """Whether the database is a SQLite file, which only this machine's processes use."""
        return self.effective_database_url.startswith("sqlite")

    def system_config(self) -> SystemConfig:
        """The system that these settings name, with its options and ``local_scheduler``.

        Raises ValueError naming what is unknown, and what is known.
        """
        from fairserve.platform.tuning.parameters import system_config

        return system_config(self, self.system, {})
