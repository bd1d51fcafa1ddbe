"""An OTLP/HTTP collector in a thread of the test: it decodes what exporters send."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage


class Span(NamedTuple):
    """A span that was received."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    links: list
    """Ids of the linked spans."""
    attributes: dict
    events: list
    """Names of its events."""
    error: bool
    resource: dict
    schema_url: str


class OtlpCollector:
    """Collects spans until it is closed; ``environment`` makes exporters send them at once."""

    def __init__(self):
        self.spans, self.bodies = [], []
        self.answering = threading.Event()
        """While it is not set, requests wait for their answer."""
        self.answering.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                assert self.headers["content-type"] == "application/x-protobuf"
                collector.answering.wait()
                collector._take(body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def environment(self):
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "20"}

    def close(self):
        self.answering.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _take(self, body):
        self.bodies.append(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    its = _plain(resource.resource.attributes)
                    self.spans.append(_span(span, its, scope.schema_url))


def _span(message: SpanMessage, resource, schema_url):
    return Span(
        name=message.name,
        trace_id=message.trace_id.hex(),
        span_id=message.span_id.hex(),
        parent_id=message.parent_span_id.hex(),
        kind=message.kind,
        links=[link.span_id.hex() for link in message.links],
        attributes=_plain(message.attributes),
        events=[event.name for event in message.events],
        error=message.status.code == message.status.STATUS_CODE_ERROR,
        resource=resource,
        schema_url=schema_url,
    )


def _plain(attributes):
    found = {}
    for each in attributes:
        kind = each.value.WhichOneof("value")
        found[each.key] = getattr(each.value, kind)
    return found
