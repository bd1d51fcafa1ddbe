"""Settings of what a request passes through."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fairserve.platform.base.settings import RoomSettings

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
    keepalive_s: float = Field(
        15.0,
        gt=0,
        le=3600,
        description="Interval of the comments sent to a streaming client while it gets nothing else.",
    )
    program_time_limit_s: float = Field(
        3600.0,
        gt=0,
        le=30 * 86_400,
        description="Seconds after which a program is cancelled, including time for which the "
        "server was stopped.",
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
    file_max_bytes_in_all: int = Field(
        16 << 30,
        ge=1024,
        le=1 << 55,
        description="Total size of all files; more uploads answer 503, and batches end. One tenant may "
        "have a sixteenth of it.",
    )
    batch_parallel_calls: int = Field(
        32,
        ge=1,
        le=10_000,
        description="Calls of one batch that may be queued or running at a time.",
    )
    response_store: bool = Field(
        True,
        description="Store responses, unless a request has store false; without it none are stored.",
    )
    content_retention_days: float = Field(
        30.0,
        gt=0,
        le=3650,
        description="Days for which programs with their outputs, stored responses, batches and files "
        "are kept after their end; a file may name another time.",
    )
