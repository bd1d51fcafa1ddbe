"""Settings of Envoy as the data plane, beyond those that the embedded plane has, too.

Limits of connections, heads, bodies and time, trusted proxies and the queue are the settings of other
rooms, and mean the same in both planes (:mod:`fairserve.platform.envoy.limits`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from fairserve.platform.base.settings import RoomSettings, empty_is_none

EnvoyLogLevel = Literal["debug", "info", "warning", "error"]


class EnvoySettings(RoomSettings):
    """TLS, threads, memory and intervals of Envoy."""

    envoy_tls_cert: Annotated[Path | None, BeforeValidator(empty_is_none)] = Field(
        None,
        description="PEM file with the certificate chain of Envoy's public side, which then serves TLS "
        "only. Read again after a rename in its folder.",
    )
    envoy_tls_key: Annotated[Path | None, BeforeValidator(empty_is_none)] = Field(
        None, description="PEM file with the private key of envoy_tls_cert."
    )

    envoy_concurrency: int = Field(
        0,
        ge=0,
        le=1024,
        description="Worker threads of Envoy; 0: one for each CPU.",
    )
    envoy_progress_s: float = Field(
        1.0,
        ge=0.01,
        le=60,
        description="Interval at which Envoy reports the tokens of a running stream; between two "
        "reports a forecast counts for budgets and fairness.",
    )
    envoy_heap_bytes: int = Field(
        2 << 30,
        ge=64 << 20,
        le=1 << 44,
        description="Memory of Envoy. From 90 % on it releases spare memory, from 92 % on it closes "
        "connections after their answer, and from 95 % on new requests answer 503.",
    )
    envoy_max_headers: int = Field(
        100,
        ge=10,
        le=10_000,
        description="Headers that a request may have at Envoy; more answer 431.",
    )
    envoy_streams_per_connection: int = Field(
        100,
        ge=1,
        le=10_000,
        description="Requests at a time on one HTTP/2 connection of a client.",
    )
    envoy_connect_timeout_s: float = Field(
        5.0,
        gt=0,
        le=300,
        description="Seconds for a connection from Envoy to a worker; after that the call is sent "
        "to the next one.",
    )
    envoy_log_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024 * 1024,
        le=1 << 36,
        description="Size at which Envoy's log of ended calls begins a new file; the file before it "
        "is kept.",
    )
    envoy_log_level: EnvoyLogLevel = Field(
        "warning", description="Lowest level of Envoy's own messages: debug, info, warning, error."
    )

    @model_validator(mode="after")
    def _check_certificate(self) -> Self:
        if (self.envoy_tls_cert is None) != (self.envoy_tls_key is None):
            raise ValueError("envoy_tls_cert and envoy_tls_key need each other")
        return self
