"""Messages of the endpoint picker protocol: modes, metadata, and bodies in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from google.protobuf.struct_pb2 import Value

from fairserve.platform.envoy.protocol import messages_pb2 as pb

CHUNK_BYTES = 62 * 1024
"""Longest body in a message: some data planes allow 64 KiB."""

NONE = pb.ProcessingMode.NONE
STREAMED = pb.ProcessingMode.STREAMED
BUFFERED = pb.ProcessingMode.BUFFERED
FULL_DUPLEX = pb.ProcessingMode.FULL_DUPLEX_STREAMED


def metadata_value(metadata: pb.Metadata, namespace: str, key: str) -> Value | None:
    """Return an entry of a message's metadata; None if it is not set."""
    if namespace not in metadata.filter_metadata:
        return None
    fields: Mapping[str, Value] = metadata.filter_metadata[namespace].fields
    return fields.get(key)


def texts_of(value: Value) -> list[str]:
    """Return the texts of a list; those between commas of a single text; none of anything else."""
    if value.HasField("list_value"):
        found = [each.string_value for each in value.list_value.values]
    else:
        found = value.string_value.split(",")
    return [text.strip() for text in found if text.strip()]


def chunks(body: bytes) -> Iterator[bytes]:
    """Yield the parts of a body, each short enough for a message; one empty part for none."""
    for start in range(0, max(1, len(body)), CHUNK_BYTES):
        yield body[start : start + CHUNK_BYTES]


def streamed(body: bytes, *, end: bool = False) -> pb.CommonResponse:
    """Return the part of a body in full-duplex mode."""
    part = pb.StreamedBodyResponse(body=body, end_of_stream=end)
    return pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=part))


def replaced(body: bytes) -> pb.BodyMutation:
    """Return the mutation that replaces a body, or a chunk of it."""
    return pb.BodyMutation(body=body) if body else pb.BodyMutation(clear_body=True)
