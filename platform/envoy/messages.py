"""Envoy's messages from plain values: headers, bodies and answers, and headers as a dictionary."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from google.protobuf.struct_pb2 import Struct, Value

from fairserve.platform.envoy.protocol import messages_pb2 as pb
from fairserve.platform.tenancy.auth import KEY_HEADERS

_OVERWRITE = pb.HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD


def plain_headers(headers: pb.HeaderMap) -> dict[str, str]:
    """Return headers by lower-case name; the last of several lines counts.

    Different keys are joined with a comma, and so are no key.
    """
    plain: dict[str, str] = {}
    for header in headers.headers:
        name = header.key.lower()
        value = header.raw_value.decode("latin-1") if header.raw_value else header.value
        if name in KEY_HEADERS and plain.get(name, value) != value:
            value = f"{plain[name]}, {value}"
        plain[name] = value
    return plain


def mutation(
    set_headers: Mapping[str, str], remove_headers: Collection[str] = ()
) -> pb.HeaderMutation:
    """Return a change of headers, which replaces those of the same name."""
    return pb.HeaderMutation(
        set_headers=[
            pb.HeaderValueOption(
                header=pb.HeaderValue(key=name, raw_value=value.encode("latin-1", "replace")),
                append_action=_OVERWRITE,
            )
            for name, value in set_headers.items()
        ],
        remove_headers=list(remove_headers),
    )


def struct(values: Mapping[str, Any]) -> Struct:
    """Return texts, numbers, flags and mappings of them as dynamic metadata has them."""
    return Struct(fields={name: _value(value) for name, value in values.items()})


def _value(value: Any) -> Value:
    if isinstance(value, str):
        return Value(string_value=value)
    if isinstance(value, bool):
        return Value(bool_value=value)
    if isinstance(value, Mapping):
        return Value(struct_value=struct(value))
    return Value(number_value=value)


def immediate(
    status: int, headers: Mapping[str, str], body: bytes, details: str = ""
) -> pb.ProcessingResponse:
    """Return an answer to the client instead of the worker's.

    Our Envoy gets no ``details``: its own errors have some, and by that it distinguishes the two
    (:mod:`fairserve.platform.envoy.local_errors`).
    """
    return pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(
            status=pb.HttpStatus(code=status),
            headers=mutation(headers),
            body=body,
            details=details,
        )
    )
