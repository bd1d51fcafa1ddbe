"""Signatures by the Standard Webhooks specification (https://www.standardwebhooks.com).

HMAC-SHA256 over ``id.timestamp.body``. Signing secrets are not stored but derived from the platform's
secret key, the endpoint's id and a version, so a copy of the database cannot sign. Rotate each
endpoint's secret between two replacements of the platform's secret key; otherwise nothing is signed.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence
from datetime import datetime, timedelta

from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.webhooks import WebhookEndpoint

PREFIX = "whsec_"
GRACE = timedelta(hours=24)
"""Time after a rotation during which the previous secret signs, too."""


def derive(hasher: KeyHasher, endpoint_id: str, version: int, secret_id: str) -> bytes | None:
    """Return a signing secret; None if the platform's secret key of this id is no longer set."""
    return hasher.subkey(f"webhook {endpoint_id} {version}", secret_id)


def secret_text(secret: bytes) -> str:
    """Return a signing secret in its text form: ``whsec_...``."""
    return PREFIX + base64.b64encode(secret).decode()


def signing_secrets(hasher: KeyHasher, endpoint: WebhookEndpoint, now: datetime) -> list[bytes]:
    """Return the secrets in force, the current one first.

    Empty if the platform's secret key from which they are derived is no longer set.
    """
    version = endpoint.secret_version
    present = derive(hasher, endpoint.id, version, endpoint.secret_id)
    if present is None:
        return []
    found = [present]
    if endpoint.previous_secret_id is not None and _after(endpoint.previous_until, now):
        previous = derive(hasher, endpoint.id, version - 1, endpoint.previous_secret_id)
        if previous is not None:
            found.append(previous)
    return found


def headers(secrets: Sequence[bytes], event_id: str, body: bytes, now: datetime) -> dict[str, str]:
    """Return the three headers of a message."""
    timestamp = str(int(now.timestamp()))
    signed = b".".join((event_id.encode(), timestamp.encode(), body))
    signatures = (base64.b64encode(hmac.digest(each, signed, "sha256")) for each in secrets)
    return {
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{each.decode()}" for each in signatures),
    }


def _after(time: datetime | None, now: datetime) -> bool:
    return time is not None and time > now
