"""gRPC servers of external processing: for our Envoy, with its access logs, and for gateways.

Cost of a message: about 0.1 ms of Python for gRPC, beside that of the decision.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc

from fairserve.platform.envoy.access_log import AccessLogService
from fairserve.platform.envoy.decisions import ExternalProcessor
from fairserve.platform.envoy.protocol import messages_pb2 as pb
from fairserve.platform.envoy.protocol.services import (
    ACCESS_LOG_SERVICE,
    EXTERNAL_PROCESSOR,
    PROCESS,
    STREAM_ACCESS_LOGS,
)

Handler = Callable[[object, Any], Coroutine[Any, Any, None]]
"""Handles a stream: its requests, which are read from the context, and the context."""
MAX_MESSAGE_MARGIN_BYTES = 1024 * 1024
"""Bytes of a message beside the body in it: headers and framing."""
MAX_PENDING_STREAMS = 1_000_000
"""More than Envoy's listener lets through."""
MAX_PENDING_S = 3600
"""Longest wait of a stream for Python, in seconds. By default gRPC cancels it after 30 s, and its client
gets 503: thousands of calls that arrive at once on a busy machine wait longer."""


def processor_server(
    process: Handler, max_body_bytes: int, *options: tuple[str, int]
) -> grpc.aio.Server:
    """Return a server of external processing, without an address, that is not started yet.

    ``process`` handles the stream of one request; ``options`` are further ones of gRPC.
    """
    max_bytes = max_body_bytes + MAX_MESSAGE_MARGIN_BYTES
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", max_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", 2**31 - 1),
            # A burst of calls waits for the event loop; gRPC would cancel what exceeds 1,000.
            ("grpc.server.max_pending_requests", MAX_PENDING_STREAMS),
            ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_STREAMS),
            ("grpc.server_max_unrequested_time_in_server", MAX_PENDING_S),
            *options,
        ]
    )
    handler = grpc.stream_stream_rpc_method_handler(
        process, pb.ProcessingRequest.FromString, pb.ProcessingResponse.SerializeToString
    )
    services = grpc.method_handlers_generic_handler(EXTERNAL_PROCESSOR, {PROCESS: handler})
    server.add_generic_rpc_handlers((services,))
    return server


def grpc_server(
    address: str, processor: ExternalProcessor, logs: AccessLogService, max_body_bytes: int
) -> grpc.aio.Server:
    """Return the server of our Envoy, which is not started yet.

    ``address`` is a gRPC target, as ``unix:/PATH``.
    """
    server = processor_server(
        processor.process, max_body_bytes, ("grpc.http2.max_pings_without_data", 0)
    )
    handler = grpc.stream_unary_rpc_method_handler(
        logs.stream,
        pb.StreamAccessLogsMessage.FromString,
        pb.StreamAccessLogsResponse.SerializeToString,
    )
    services = grpc.method_handlers_generic_handler(
        ACCESS_LOG_SERVICE, {STREAM_ACCESS_LOGS: handler}
    )
    server.add_generic_rpc_handlers((services,))
    server.add_insecure_port(address)
    return server


def socket_target(path: Path) -> str:
    """Return the gRPC target of a Unix socket."""
    return f"unix:{path}"
