"""Notes of pages after a change, selected by name in the URL, which prevents injected text."""

from __future__ import annotations

from collections.abc import Mapping

NOTES: Mapping[str, str] = {
    "throttling": "The settings are in force.",
    "reverted": "The settings of the earlier version are in force, as a new version.",
    "user": "User settings saved; they apply from the next call.",
    "tenant": "Tenant settings saved; they apply from the next call.",
    "app": "App settings saved; they apply from the next call.",
    "cancelled": "Run cancelled.",
    "draining": "Worker draining: it finishes its calls and gets no new ones.",
    "undrained": "Worker undrained: it gets new calls.",
    "job": "Job requested; it runs soon.",
    "key_changed": "Key changed.",
    "key_revoked": "Key revoked.",
    "profile": "Profile changed.",
    "export": "Report requested.",
}
