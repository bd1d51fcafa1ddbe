"""What a page says after a change: by a name in its address, so that nobody can put words there."""

from __future__ import annotations

from collections.abc import Mapping

NOTES: Mapping[str, str] = {
    "throttling": "The setting holds from now on.",
    "reverted": "The earlier setting holds again, as a new version.",
    "user": "The user's settings hold from the next call on.",
    "tenant": "The tenant's settings hold from the next call on.",
    "app": "The app's settings hold from the next call on.",
    "cancelled": "The run is cancelled.",
    "draining": "The worker finishes its calls and takes no more.",
    "undrained": "The worker takes calls again.",
    "job": "The job runs soon.",
    "key_renamed": "The key is renamed.",
    "key_revoked": "The key is revoked.",
    "profile": "The profile is changed.",
    "export": "The report is being made.",
}
