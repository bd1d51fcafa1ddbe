"""Signatures verify with an independent implementation, and their secrets are never stored."""

from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from fairserve.platform.background.webhooks.signature import (
    derive,
    headers,
    secret_text,
    signing_secrets,
)
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.webhooks import WebhookEndpoint

FIRST, SECOND, THIRD = b"a" * 32, b"b" * 32, b"c" * 32
BODY = b'{"type":"webhook.test","data":{}}'


def now():
    return datetime.now(UTC)


def endpoint(hasher, version=1, **more):
    return WebhookEndpoint(id="wh_1", secret_version=version, secret_id=hasher.secret_id, **more)


def display_secret(hasher, version=1):
    return secret_text(derive(hasher, "wh_1", version, hasher.secret_id))


def test_standard_library_verifies_signature_and_detects_changes():
    hasher = KeyHasher(FIRST)
    signed = headers(signing_secrets(hasher, endpoint(hasher), now()), "evt_1", BODY, now())
    secret = display_secret(hasher)
    assert secret.startswith("whsec_")
    assert Webhook(secret).verify(BODY, signed) == {"type": "webhook.test", "data": {}}
    for changed in (
        (BODY + b" ", signed),
        (BODY, signed | {"webhook-id": "evt_2"}),
        (BODY, signed | {"webhook-timestamp": str(int(signed["webhook-timestamp"]) - 1)}),
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(*changed)
    old = headers(
        signing_secrets(hasher, endpoint(hasher), now()), "e", BODY, now() - timedelta(hours=1)
    )
    with pytest.raises(WebhookVerificationError, match="old"):
        Webhook(secret).verify(BODY, old)


def test_each_endpoint_version_and_platform_has_its_own_secret():
    hasher = KeyHasher(FIRST)
    found = {
        derive(KeyHasher(secret), name, version, KeyHasher(secret).secret_id)
        for secret in (FIRST, SECOND)
        for name in ("wh_1", "wh_2")
        for version in (1, 2)
    }
    assert len(found) == 8
    assert {len(each) for each in found} == {32}
    assert derive(hasher, "wh_1", 1, KeyHasher(SECOND).secret_id) is None


def test_no_stored_hash_is_a_signing_secret():
    hasher = KeyHasher(FIRST)
    assert hasher.hash("webhook wh_1 1") != derive(hasher, "wh_1", 1, hasher.secret_id).hex()


def test_a_rotated_secret_also_signs_during_its_grace_period():
    hasher = KeyHasher(FIRST)
    rotated = endpoint(
        hasher,
        2,
        previous_secret_id=hasher.secret_id,
        previous_until=now() + timedelta(hours=24),
    )
    signed = headers(signing_secrets(hasher, rotated, now()), "evt_1", BODY, now())
    assert len(signed["webhook-signature"].split()) == 2
    for version in (1, 2):
        Webhook(display_secret(hasher, version)).verify(BODY, signed)
    later = now() + timedelta(hours=25)
    assert signing_secrets(hasher, rotated, later) == [derive(hasher, "wh_1", 2, hasher.secret_id)]


def test_secrets_survive_one_rotation_of_the_platform_key():
    before, during, after = KeyHasher(FIRST), KeyHasher(SECOND, FIRST), KeyHasher(SECOND)
    made = endpoint(before)
    signed = headers(signing_secrets(during, made, now()), "evt_1", BODY, now())
    Webhook(display_secret(before)).verify(BODY, signed)
    assert signing_secrets(after, made, now()) == []
    rotated = endpoint(
        during,
        2,
        previous_secret_id=before.secret_id,
        previous_until=now() + timedelta(hours=1),
    )
    assert len(signing_secrets(during, rotated, now())) == 2
    assert len(signing_secrets(after, rotated, now())) == 1
