"""Settings of the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from fairserve.platform.base.settings import RoomSettings, TextList, empty_is_none


class FleetSettings(RoomSettings):
    """Settings of embedded workers, and of external workers given at the start."""

    model: str = Field(
        "",
        description="Checkpoint folder or hub id that the embedded workers load. Empty: a small "
        "built-in model of random weights; `demo`: one whose answers follow a script. With "
        "worker_urls: the tokenizer of their model.",
    )
    workers: int = Field(2, ge=0, le=256, description="Embedded worker processes to start.")
    worker_urls: TextList = Field(
        (),
        description="Base URLs of external workers, separated by commas; their ids are w0, w1, ... "
        "Embedded workers start only if none is configured here, in a fleet file or through "
        "the admin API.",
        json_schema_extra={"default_text": "none"},
    )
    fleet_file: Annotated[Path | None, BeforeValidator(empty_is_none)] = Field(
        None,
        description="JSON file with external workers, aliases and tokenizers; changes apply while "
        "the server runs (docs/guide/fleet.md). The configuration file may have them as `fleet`.",
    )
    worker_kv_tokens: int = Field(
        16_384, ge=256, le=1 << 31, description="KV cache of an embedded worker, in tokens."
    )
    worker_max_batch: int = Field(
        16, ge=1, le=4096, description="Sequences that an embedded worker runs at once."
    )

    @field_validator("worker_urls")
    @classmethod
    def _check_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        value = tuple(url for url in value if url)
        for url in value:
            if not url.startswith(("http://", "https://")):
                raise ValueError("a worker URL must start with http:// or https://")
        if len(set(value)) != len(value):
            raise ValueError("a worker URL is given twice")
        return tuple(url.rstrip("/") for url in value)
