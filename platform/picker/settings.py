"""Settings of the endpoint picker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from fairserve.platform.base.settings import RoomSettings, TextList, empty_is_none
from fairserve.platform.fleet.worker_spec import WorkerKind

FAIRNESS_HEADER = "x-gateway-inference-fairness-id"


class PickerSettings(RoomSettings):
    """Address and clients of `fairserve picker`, and the InferencePool that it picks from."""

    picker_host: str = Field(
        "127.0.0.1", description="Address that `fairserve picker` listens on for gateways."
    )
    picker_port: int = Field(
        9002, ge=0, le=65535, description="Its port for gRPC; 0 takes a free one."
    )
    picker_tls: bool = Field(
        True,
        description="Use TLS for gateways, with a self-signed certificate unless picker_tls_cert names "
        "one. Off: plain text.",
    )
    picker_tls_cert: Annotated[Path | None, BeforeValidator(empty_is_none)] = Field(
        None, description="PEM file with the certificate chain for gateways; read at the start."
    )
    picker_tls_key: Annotated[Path | None, BeforeValidator(empty_is_none)] = Field(
        None, description="PEM file with the private key of picker_tls_cert."
    )
    picker_app: str = Field(
        "",
        description="Id of the app that owns the calls without an app key. Empty: such calls answer "
        "401.",
    )
    picker_client_headers: TextList = Field(
        (FAIRNESS_HEADER,),
        description="Headers that name the client of a call without an app key, the first that is set; "
        "separated by commas. The gateway must set them: who chooses them chooses its share.",
        json_schema_extra={"default_text": FAIRNESS_HEADER},
    )
    picker_background_objectives: TextList = Field(
        (),
        description="Values of x-gateway-inference-objective whose calls are background calls, "
        "separated by commas. All others have no effect: no client gets ahead by naming one.",
        json_schema_extra={"default_text": "none"},
    )
    picker_fallbacks: int = Field(
        0,
        ge=0,
        le=16,
        description="Further endpoints that are named after the picked one, for gateways that try them "
        "in order. An ORIGINAL_DST cluster of Envoy takes one endpoint only.",
    )
    pool_name: str = Field(
        "", description="InferencePool whose pods are the workers, read from the Kubernetes API."
    )
    pool_namespace: str = Field(
        "", description="Its namespace. Empty: that of the service account, else default."
    )
    pool_worker_kind: WorkerKind = Field(
        "vllm",
        description="Kind of the pool's servers: vllm, or openai for any other, which get a queue here.",
    )
    pool_worker_key_env: str = Field(
        "", description="Environment variable with the bearer token of the pool's servers."
    )
    pool_kv_events_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port at which each pod publishes its KV events, if it does not report it; 0: none.",
    )
    pool_kv_replay_port: int = Field(
        0, ge=0, le=65535, description="Port of their replay; 0: none."
    )

    @model_validator(mode="after")
    def _check_certificate(self) -> Self:
        if (self.picker_tls_cert is None) != (self.picker_tls_key is None):
            raise ValueError("picker_tls_cert and picker_tls_key need each other")
        if self.pool_kv_replay_port and not self.pool_kv_events_port:
            raise ValueError("pool_kv_replay_port needs pool_kv_events_port")
        return self
