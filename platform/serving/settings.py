"""Settings of what a request passes through."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from fairserve.interactions.run_rules import (
    DEFAULT_RUN_RULES,
    RUN_RULES,
    RunRule,
    normal_rules,
)
from fairserve.platform.base.settings import RoomSettings, TextList

CacheIsolation = Literal["tenant", "app", "user", "none"]


class ServingSettings(RoomSettings):
    """Requests, answers, and bounds of programs, files, batches and kept answers."""

    default_max_tokens: int = Field(
        256,
        ge=1,
        le=1 << 24,
        description="Output limit of a call that names none, within the model's context.",
    )
    cache_isolation: CacheIsolation = Field(
        "tenant",
        description="Users that share cached prefixes: those of a tenant (tenant), those of one of "
        "its apps (app), none (user), or all tenants' (none), who can then infer from "
        "timings what others asked.",
    )
    run_rules: TextList = Field(
        DEFAULT_RUN_RULES,
        description="Rules that assign calls to interactions, for apps that choose none, separated by "
        "commas: " + ", ".join(RUN_RULES) + ". Their order is fixed.",
        json_schema_extra={"default_text": "all but whole_trace and prompt_cache_key"},
    )
    run_from_traceparent: bool = Field(
        False,
        description="Former name of the rule whole_trace: adds it to run_rules.",
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
        description="Interval at which the key or sign-in behind an open stream of events is "
        "checked again; the stream ends if it is no longer valid.",
    )
    client_buffer_bytes: int = Field(
        256 * 1024,
        ge=1024,
        le=1 << 30,
        description="Part of an answer that is buffered for a slow client, per call; a full buffer "
        "makes the call wait for its client.",
    )
    client_write_timeout_s: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="Seconds after which a client that reads nothing of its answer, or makes its "
        "call wait for this long in all, loses its connection; its call is cancelled "
        "and recorded as such.",
    )
    program_max_nodes: int = Field(
        1_000, ge=1, le=5_000, description="Nodes that a declared program may have."
    )
    program_parallel_calls: int = Field(
        32,
        ge=1,
        le=10_000,
        description="Calls of one program that may be queued or running at a time.",
    )
    program_time_limit_s: float = Field(
        3600.0,
        gt=0,
        le=30 * 86_400,
        description="Seconds after which a program is cancelled, including time for which the "
        "server was stopped.",
    )
    program_max_live: int = Field(
        1_000,
        ge=1,
        le=1_000_000,
        description="Active programs of all apps; more answer 503. One tenant may have max_tenant_share "
        "of those that others leave; more answer 429.",
    )
    program_max_live_per_app: int = Field(
        200, ge=1, le=1_000_000, description="Active programs of one app; more answer 429."
    )
    program_max_bytes: int = Field(
        512 * 1024 * 1024,
        ge=1024 * 1024,
        le=1 << 40,
        description="Declarations and outputs of all active programs; at this size new ones answer "
        "503. One tenant may have max_tenant_share of what others leave; more answer 429.",
    )
    program_retention_days: float = Field(
        7.0,
        gt=0,
        le=3650,
        description="Days after its end for which a program and its outputs can be read.",
    )
    file_store_url: str = Field(
        "",
        repr=False,
        description="Place of the contents of files: a URL of fsspec, such as s3://bucket/folder or "
        "file:///folder; empty: the database.",
    )
    file_max_bytes: int = Field(
        100 * 1024 * 1024,
        ge=1024,
        le=1 << 40,
        description="Largest file that an app may upload; larger ones answer 413.",
    )
    file_max_per_tenant: int = Field(
        1_000, ge=1, le=10_000_000, description="Files of one tenant; more answer 429."
    )
    file_max_bytes_per_tenant: int = Field(
        1 << 30,
        ge=1024,
        le=1 << 50,
        description="Total size of the files of one tenant, and of the results of its batches that "
        "have no file yet; more uploads answer 429, and its batches end.",
    )
    file_max_bytes_in_all: int = Field(
        16 << 30,
        ge=1024,
        le=1 << 55,
        description="Total size of all files; more uploads answer 503, and batches end.",
    )
    file_retention_days: float = Field(
        30.0,
        gt=0,
        le=3650,
        description="Days for which a file is kept, if its app does not name another time.",
    )
    batch_max_lines: int = Field(
        50_000, ge=1, le=10_000_000, description="Calls that a batch may have."
    )
    batch_max_line_bytes: int = Field(
        1024 * 1024, ge=1024, le=1 << 30, description="Largest line of a batch's file."
    )
    batch_parallel_calls: int = Field(
        32,
        ge=1,
        le=10_000,
        description="Calls of one batch that may be queued or running at a time.",
    )
    batch_max_live: int = Field(
        128,
        ge=1,
        le=100_000,
        description="Batches that run at a time; others wait. One tenant may have max_tenant_share of "
        "them.",
    )
    batch_max_unfinished_per_app: int = Field(
        16,
        ge=1,
        le=100_000,
        description="Batches of one app that have not ended; more answer 429.",
    )
    batch_memory_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1024,
        le=1 << 40,
        description="Total size of the lines whose calls are queued or running; more lines wait. One "
        "tenant may have max_tenant_share of it.",
    )
    batch_retention_days: float = Field(
        30.0,
        gt=0,
        le=3650,
        description="Days after its end for which a batch can be read.",
    )
    idempotency_retention_s: float = Field(
        3600.0,
        gt=0,
        le=7 * 86_400,
        description="Seconds for which an Idempotency-Key is remembered.",
    )
    idempotency_max_entries: int = Field(
        10_000,
        ge=1,
        le=10_000_000,
        description="Idempotency keys that are remembered at a time; at the limit the tenant with most "
        "loses its oldest.",
    )
    idempotency_max_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        le=1 << 36,
        description="Total size of the answers kept for repeated Idempotency-Keys.",
    )
    response_store: bool = Field(
        True,
        description="Store responses, unless a request has store false; without it none are stored.",
    )
    response_retention_days: float = Field(
        30.0,
        gt=0,
        le=3650,
        description="Days for which a stored response can be read and continued.",
    )
    response_max_per_app: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Stored responses of one app; beyond that its oldest are deleted.",
    )
    response_max_bytes_per_app: int = Field(
        256 * 1024 * 1024,
        ge=1024 * 1024,
        le=1 << 40,
        description="Total size of the stored responses of one app; beyond that its oldest are "
        "deleted.",
    )
    response_max_per_tenant: int = Field(
        100_000,
        ge=1,
        le=10_000_000,
        description="Stored responses of all apps of a tenant; beyond that its oldest are deleted.",
    )
    response_max_bytes_per_tenant: int = Field(
        1 << 30,
        ge=1024 * 1024,
        le=1 << 40,
        description="Total size of the stored responses of a tenant; beyond that its oldest are "
        "deleted.",
    )
    response_max_background: int = Field(
        1_000,
        ge=1,
        le=1_000_000,
        description="Responses of all apps that run in the background; more answer 503. One tenant may "
        "have max_tenant_share of those that others leave; more answer 429.",
    )
    response_max_background_per_app: int = Field(
        100,
        ge=1,
        le=1_000_000,
        description="Responses of one app that run in the background; more answer 429.",
    )

    @field_validator("run_rules")
    @classmethod
    def _check_rules(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return normal_rules(value)

    @property
    def default_run_rules(self) -> tuple[RunRule, ...]:
        """Return the rules of apps that choose none."""
        added = ("whole_trace",) if self.run_from_traceparent else ()
        return normal_rules((*self.run_rules, *added))
