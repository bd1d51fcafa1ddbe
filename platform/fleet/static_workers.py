"""The workers of the setting ``worker_urls``."""

from __future__ import annotations

from fairserve.engine.wire.base import KvEndpoints
from fairserve.platform.fleet.fleet import FleetPart
from fairserve.platform.fleet.settings import FleetSettings
from fairserve.platform.fleet.worker_spec import WorkerSpec


def static_fleet(settings: FleetSettings) -> FleetPart:
    """Return the workers of ``worker_urls``, with ids w0, w1, ... in their order."""
    publishers = settings.worker_kv_events or ("",) * len(settings.worker_urls)
    return FleetPart(
        workers=tuple(
            WorkerSpec(f"w{number}", url, kv_events=KvEndpoints(*pair.split()) if pair else None)
            for number, (url, pair) in enumerate(zip(settings.worker_urls, publishers, strict=True))
        )
    )
