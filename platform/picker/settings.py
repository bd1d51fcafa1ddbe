"""Settings of the endpoint picker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from fairserve.platform.base.settings import RoomSettings, TextList, word_of_switch
from fairserve.platform.fleet.worker_spec import WorkerKind


class PickerSettings(RoomSettings):
    """Address and clients of `fairserve picker`, and the InferencePool that it picks from."""

    picker_port: int = Field(
        9002,
        ge=0,
        le=65535,
        description="Port of `fairserve picker` for gateways (gRPC), at the address of host; 0 takes a "
        "free one.",
    )
    picker_tls: Annotated[str, BeforeValidator(word_of_switch)] = Field(
        "self-signed",
        min_length=1,
        description="TLS for gateways: self-signed, off (plain text), or a folder with the PEM files "
        "tls.crt and tls.key, which are read at the start.",
    )
    picker_app: str = Field(
        "",
        description="Id of the app that owns the calls without an app key. Empty: such calls answer "
        "401.",
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
        "",
        description="InferencePool whose pods are the workers, read from the Kubernetes API: NAME in "
        "the namespace of the service account, or NAMESPACE/NAME.",
    )
    pool_worker_kind: WorkerKind = Field(
        "vllm",
        description="Kind of the pool's servers: vllm, or openai for any other, which get a queue here.",
    )
    pool_worker_key_env: str = Field(
        "", description="Environment variable with the bearer token of the pool's servers."
    )
    pool_kv_ports: str = Field(
        "",
        pattern=r"^(\d{1,5}(,\d{1,5})?)?$",
        description="Port at which each pod publishes its KV events, and after a comma the port of "
        "their replay, such as 5557,5558, if the pods do not report them.",
    )

    @property
    def tls_folder(self) -> Path | None:
        """Return the folder of the certificate; None for a self-signed one, and without TLS."""
        return None if self.picker_tls in ("self-signed", "off") else Path(self.picker_tls)
