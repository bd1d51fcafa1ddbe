"""Notes of pages after a change, selected by name in the URL, which prevents injected text."""

from __future__ import annotations

from collections.abc import Mapping

NOTES: Mapping[str, str] = {
    "throttling": "The settings are in force.",
    "reverted": "The settings of the earlier version are in force, as a new version.",
    "user": "User settings saved; they apply from the next call.",
    "tenant": "Tenant settings saved; they apply from the next call.",
    "app": "App settings saved; they apply from the next call.",
    "limits": "Limits restored; they apply from the next call.",
    "delete": "Deleted; it can be restored.",
    "restore": "Restored; its keys work again.",
    "cancelled": "Run cancelled.",
    "draining": "Worker draining: it finishes its calls and gets no new ones.",
    "undrained": "Worker undrained: it gets new calls.",
    "joining": "Worker added: it serves once it responds.",
    "removed": "Worker removed; the calls that finish first keep it listed as leaving.",
    "alias": "Aliases changed; effective from the next call.",
    "price": "Price set.",
    "price_deleted": "Price deleted.",
    "webhook": "Webhook changed.",
    "webhook_test": "Test event queued; its delivery is below.",
    "webhook_replay": "Failed deliveries queued again.",
    "webhook_enable": "Webhook enabled.",
    "webhook_disable": "Webhook disabled.",
    "webhook_delete": "Webhook deleted.",
    "job": "Job requested; it runs soon.",
    "key_changed": "Key changed.",
    "key_revoked": "Key revoked.",
    "profile": "Profile changed.",
    "export": "Report requested.",
}
