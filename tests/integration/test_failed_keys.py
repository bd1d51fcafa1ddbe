"""Failed uses of API keys in the audit log of the server."""

import json

import pytest
from sqlalchemy.exc import OperationalError

from fairserve.platform.tenancy.failed_keys import MAX_ENTRIES, WINDOW_S, FailedKeys

UNKNOWN = "sk-fs-a-" + "0" * 43


@pytest.fixture
def clock(management):
    """The clock of the entries, in a list."""
    platform, now = management.platform, [0.0]
    sessions, hasher = platform.sessions, platform.hasher
    platform.storage.authenticator.failed_keys = FailedKeys(sessions, hasher, clock=lambda: now[0])
    return now


def entries(management):
    found = management.call(
        management.admin_key, "GET", "/admin/audit", action="key.failed", limit=100
    )
    return found["items"]


def fail(management, key, times=1):
    for _ in range(times):
        management.call(key, "GET", "/v1/apps", status=401)


def test_a_flood_of_unknown_keys_is_counted_in_few_entries(management, clock):
    fail(management, UNKNOWN, times=MAX_ENTRIES * 3)
    (entry,) = entries(management)
    assert (entry["actor"], entry["target"], entry["tenant"]) == ("unknown", "unknown", None)
    assert entry["after"] == {"address": "testclient", "attempts": 1}
    clock[0] += WINDOW_S + 1
    fail(management, UNKNOWN)
    assert [each["after"]["attempts"] for each in entries(management)] == [MAX_ENTRIES * 3, 1]


def test_a_revoked_key_that_is_used_is_named_and_not_shown(management, clock):
    tenant = management.new_tenant("acme")
    made = management.call(
        management.admin_key,
        "POST",
        f"/admin/tenants/{tenant['id']}/keys",
        {"name": "x"},
        status=201,
    )
    path = f"/admin/tenants/{tenant['id']}/keys/{made['id']}"
    management.call(management.admin_key, "DELETE", path)
    fail(management, made["api_key"])
    (entry,) = entries(management)
    assert (entry["target"], entry["tenant"]) == (made["id"], tenant["id"])
    assert entry["actor"] == made["prefix"]
    assert made["api_key"] not in json.dumps(entry)


def test_a_request_without_a_key_or_with_the_wrong_kind_is_no_failed_use(management, clock):
    tenant = management.new_tenant("acme")
    management.call(None, "GET", "/v1/apps", status=401)
    management.call(tenant["api_key"], "GET", "/admin/tenants", status=403)
    assert entries(management) == []


def test_a_wrong_sign_in_has_its_own_entry_only(management, clock):
    form = {"key": UNKNOWN}
    assert management.client.post("/console/sign-in", data=form).status_code == 401
    assert entries(management) == []
    found = management.call(
        management.admin_key, "GET", "/admin/audit", action="console.sign_in_failed"
    )
    assert found["total"] == 1


def test_a_database_that_cannot_be_written_changes_no_answer(management, clock, caplog):
    class Broken:
        def begin(self):
            raise OperationalError("", {}, Exception("gone"))

    management.platform.storage.authenticator.failed_keys._sessions = Broken()
    fail(management, UNKNOWN)
    assert "not in the audit log: OperationalError" in caplog.text
