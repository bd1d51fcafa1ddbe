"""Names of Envoy's gRPC services and their methods, which our own message types cannot have."""

from __future__ import annotations

EXTERNAL_PROCESSOR = "envoy.service.ext_proc.v3.ExternalProcessor"
PROCESS = "Process"
"""Bidirectional stream of ProcessingRequest and ProcessingResponse, one stream a request."""

ACCESS_LOG_SERVICE = "envoy.service.accesslog.v3.AccessLogService"
STREAM_ACCESS_LOGS = "StreamAccessLogs"
"""Client stream of StreamAccessLogsMessage, one stream a worker thread of Envoy."""
