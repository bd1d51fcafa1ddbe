"""Settings of what a request passes through."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fairserve.platform.base.settings import RoomSettings

CacheIsolation = Literal["tenant", "app", "user", "none"]


class ServingSettings(RoomSettings):
    """Reading of requests, sending of answers, and bounds of programs and kept answers."""

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
    run_from_traceparent: bool = Field(
        False,
        description="Assign a call that names no interaction to that of its W3C traceparent.",
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
        1_000, ge=1, le=1_000_000, description="Active programs of all apps; more answer 503."
    )
    program_max_live_per_app: int = Field(
        200, ge=1, le=1_000_000, description="Active programs of one app; more answer 429."
    )
    program_max_bytes: int = Field(
        512 * 1024 * 1024,
        ge=1024 * 1024,
        le=1 << 40,
        description="Declarations and outputs of all active programs; at this size new ones answer "
        "503.",
    )
    program_retention_days: float = Field(
        7.0,
        gt=0,
        le=3650,
        description="Days after its end for which a program and its outputs can be read.",
    )
    idempotency_retention_s: float = Field(
        3600.0,
        gt=0,
        le=7 * 86_400,
        description="Seconds for which an Idempotency-Key is remembered.",
    )
    idempotency_max_entries: int = Field(
        10_000, ge=1, le=10_000_000, description="Idempotency keys that are remembered at a time."
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
    response_max_background: int = Field(
        1_000,
        ge=1,
        le=1_000_000,
        description="Responses of all apps that run in the background; more answer 503.",
    )
    response_max_background_per_app: int = Field(
        100,
        ge=1,
        le=1_000_000,
        description="Responses of one app that run in the background; more answer 429.",
    )
