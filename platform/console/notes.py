"""Notes of pages after a change: selected by name in the address, so that nobody can inject text."""

from __future__ import annotations

from collections.abc import Mapping

NOTES: Mapping[str, str] = {
    "throttling": "The settings are in force.",
    "reverted": "The earlier settings are in force again, as a new version.",
    "user": "The user's settings apply from the next call on.",
    "tenant": "The tenant's settings apply from the next call on.",
    "app": "The app's settings apply from the next call on.",
    "cancelled": "The run is cancelled.",
    "draining": "The worker finishes its calls and gets no new ones.",
    "undrained": "The worker gets new calls again.",
    "job": "The job runs soon.",
    "key_renamed": "The key is renamed.",
    "key_revoked": "The key is revoked.",
    "profile": "The profile is changed.",
    "export": "The report is in progress.",
}
