"""The workers of the setting ``worker_urls``."""

from __future__ import annotations

from fairserve.platform.fleet.fleet import FleetPart
from fairserve.platform.fleet.settings import FleetSettings
from fairserve.platform.fleet.worker_spec import WorkerSpec


def static_fleet(settings: FleetSettings) -> FleetPart:
    """Return the workers of ``worker_urls``, with ids w0, w1, ... in their order."""
    return FleetPart(
        workers=tuple(
            WorkerSpec(f"w{number}", url) for number, url in enumerate(settings.worker_urls)
        )
    )
