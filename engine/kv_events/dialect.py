"""The dialect of vLLM's KV events, by which workers publish their prefix caches: bytes and values.

A batch is msgpack, ``[ts, [events], dp_rank]``; an event is a map tagged ``type``, as written by
vLLM 0.32 and 0.33. Older versions wrote events as arrays of the fields, others the batch as a map;
all forms are read. Unknown fields are ignored. An unknown *kind* of event is an error, since it may
remove blocks.

On the wire a batch consists of the frames
``[topic, sequence number (8 bytes, big endian, from 0), payload]``. A reader that missed batches
sends ``[b"", first sequence number]`` to the replay endpoint and receives
``[b"", topic, number, payload]`` for each (older versions: without the topic), the last one with
number -1.

This module has no sockets; see :mod:`fairserve.engine.kv_events.publisher` and ``subscriber``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

BlockHash = int | bytes
"""The worker's name of a block and its prefix: 64 bits, or a digest."""

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]

DEVICE_MEDIUM = "GPU"
"""Medium of blocks in device memory. vLLM uses this name on every device."""

END = -1
"""Sequence number that ends a replay."""


class KvEventsError(ValueError):
    """A message is not in this dialect."""


class BlockStored(msgspec.Struct, frozen=True, tag=True):
    """Consecutive blocks were stored, the first after ``parent_block_hash`` (None: the start)."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: Sequence[TokenId]
    """Tokens of all these blocks, ``block_size`` each."""
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    """Inputs of each block's hash besides its tokens: the name of a LoRA, images, and in the first
    block of a prompt its cache salt."""
    group_idx: int | None = None
    """Kind of cache, for models whose layers have different kinds of caches."""


class BlockRemoved(msgspec.Struct, frozen=True, tag=True):
    """These blocks are no longer in the worker's cache."""

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """The worker's cache is empty."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KvBatch(msgspec.Struct, frozen=True, array_like=True):
    """Changes of a cache in one step, in order."""

    ts: float
    """Time of the worker's clock in seconds since the epoch."""
    events: list[KvEvent]
    dp_rank: int | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(KvBatch)
_KINDS: Mapping[str, type[KvEvent]] = {
    kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)
}


def encode(batch: KvBatch) -> bytes:
    """Return the payload of a batch."""
    return _encoder.encode(
        [batch.ts, [_plain(event) for event in batch.events], batch.dp_rank or 0]
    )


def _plain(event: KvEvent) -> dict[str, Any]:
    """Return an event as vLLM writes it, without fields that have their default value."""
    kind = {"type": type(event).__name__}
    if isinstance(event, AllBlocksCleared):
        return kind
    optional: dict[str, Any] = {}
    if isinstance(event, BlockRemoved):
        fields: dict[str, Any] = {"block_hashes": event.block_hashes, "medium": event.medium}
    else:
        fields = {
            "block_hashes": event.block_hashes,
            "parent_block_hash": event.parent_block_hash,
            "token_ids": event.token_ids,
            "block_size": event.block_size,
            "lora_id": event.lora_id,
            "medium": event.medium,
            "lora_name": event.lora_name,
        }
        optional["extra_keys"] = event.extra_keys
    optional["group_idx"] = event.group_idx
    given = {name: value for name, value in optional.items() if value is not None}
    return {**kind, **fields, **given}


def decode(payload: bytes) -> KvBatch:
    """Return the batch of a payload. Raises KvEventsError."""
    try:
        try:
            batch = _decoder.decode(payload)
        except msgspec.ValidationError:
            batch = _other_form(msgspec.msgpack.decode(payload))
        for event in batch.events:
            if isinstance(event, BlockStored):
                _check(event)
    except KvEventsError:
        raise
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
        raise KvEventsError(f"a batch of KV events cannot be read: {error}") from error
    return batch


def _other_form(plain: Any) -> KvBatch:
    """Read a batch that is a map, or has events that are arrays."""
    if isinstance(plain, dict):
        ts, events, rank = plain["ts"], plain["events"], plain.get("data_parallel_rank")
    else:
        ts, events, *more = plain
        rank = more[0] if more else None
    return KvBatch(float(ts), [_event(each) for each in events], rank)


def _event(plain: Any) -> KvEvent:
    name = plain["type"] if isinstance(plain, dict) else plain[0]
    kind = _KINDS.get(name)
    if kind is None:
        raise KvEventsError(f"unknown event {name!r}; known: {', '.join(_KINDS)}")
    if not isinstance(plain, dict):
        plain = dict(zip(("type", *kind.__struct_fields__), plain, strict=False))
    return msgspec.convert(plain, kind)


def _check(event: BlockStored) -> None:
    blocks, tokens = len(event.block_hashes), len(event.token_ids)
    if event.block_size < 1 or tokens != blocks * event.block_size:
        raise KvEventsError(f"{blocks} blocks of {event.block_size} with {tokens} tokens")
    if len(set(event.block_hashes)) != blocks:
        raise KvEventsError(f"{blocks} blocks with a hash twice")
    if event.extra_keys is not None and len(event.extra_keys) != blocks:
        raise KvEventsError(f"{blocks} blocks with {len(event.extra_keys)} extra keys")


# --- frames ---------------------------------------------------------------------------------------


def message(sequence: int, payload: bytes, topic: bytes = b"") -> list[bytes]:
    """Return the frames of a published batch."""
    return [topic, _number(sequence), payload]


def replay_request(start: int) -> list[bytes]:
    """Return the frames that request the batches from ``start`` on."""
    return [b"", _number(start)]


def replay_start(frames: Sequence[bytes]) -> int:
    """Return the first number of a request without its sender's frame. Raises KvEventsError."""
    if len(frames) != 2 or frames[0] or len(frames[1]) != 8:
        raise KvEventsError("a request for a replay is an empty frame and 8 bytes")
    return int.from_bytes(frames[1], "big")


def replay_answer(sequence: int, payload: bytes, topic: bytes = b"") -> list[bytes]:
    """Return the frames of one batch of a replay, or of its end."""
    return [b"", *message(sequence, payload, topic)]


def read(frames: Sequence[bytes]) -> tuple[int, bytes]:
    """Return sequence number and payload of a published or replayed batch. Raises KvEventsError."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        raise KvEventsError(f"a batch in {len(frames)} frames without a sequence number of 8 bytes")
    return int.from_bytes(frames[-2], "big", signed=True), frames[-1]


def _number(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big", signed=True)
