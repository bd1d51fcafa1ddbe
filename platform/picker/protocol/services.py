"""Name of Envoy's gRPC service and its method, which our own message types cannot have."""

from __future__ import annotations

EXTERNAL_PROCESSOR = "envoy.service.ext_proc.v3.ExternalProcessor"
PROCESS = "Process"
"""Bidirectional stream of ProcessingRequest and ProcessingResponse, one stream a request."""
