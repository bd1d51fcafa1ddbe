"""The price table over HTTP has immutable history, exact amounts, and an audit row for each change."""

from datetime import timedelta

from sqlalchemy import select

from fairserve.interactions.call import TokenUsage
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.operations import AuditEntry
from fairserve.throttling.quotas.price import FREE

CHAT = {"model": "chat", "input": 0.25, "cached_input": 0.01875, "output": 1.1}


def create(management, status=201, **more):
    return management.call(
        management.admin_key, "POST", "/admin/prices", CHAT | more, status=status
    )


def test_a_price_is_in_force_immediately_and_exact(management):
    made = create(management)
    assert (made["input"], made["cached_input"], made["output"]) == (0.25, 0.01875, 1.1)
    assert made["currency"] == "USD"
    book = management.control.prices
    price = book.at("chat", utc_now().timestamp())
    assert (price.input, price.cached, price.output) == (250_000, 18_750, 1_100_000)
    assert price.price_id == made["id"]
    assert book.at("chat", utc_now().timestamp() - 3600) is FREE
    assert book.at("other", utc_now().timestamp()) is FREE


def test_reasoning_has_the_price_of_the_output_or_its_own(management):
    for given, shown, stored in ((None, 1.1, None), (3, 3, 3_000_000), (0, 0, 0)):
        made = create(management, model=f"m{given}", reasoning=given, flex_multiplier=0.5)
        assert made["reasoning"] == shown
        price = management.control.prices.at(f"m{given}", utc_now().timestamp())
        assert (price.output, price.reasoning) == (1_100_000, stored)
        used = TokenUsage(output_tokens=3, reasoning_tokens=2)
        assert price.of_tier("flex").cost(used) == round((1.1 + 2 * shown) * 500)


def test_the_newest_price_in_force_applies_and_a_specific_one_first(management):
    first = create(management, model="*")
    own = create(management)
    later = create(management, valid_from=(utc_now() + timedelta(hours=1)).isoformat())
    book, now_s = management.control.prices, utc_now().timestamp()
    assert book.at("other", now_s).price_id == first["id"]
    assert book.at("chat", now_s).price_id == own["id"]
    assert book.at("chat", now_s + 3601).price_id == later["id"]
    found = management.call(management.admin_key, "GET", "/admin/prices", model="chat")
    assert [each["id"] for each in found["items"]] == [later["id"], own["id"]]
    assert management.call(management.admin_key, "GET", "/admin/prices", limit=1)["total"] == 3


def test_only_a_future_price_can_be_deleted(management):
    held = create(management)
    later = create(management, valid_from=(utc_now() + timedelta(hours=1)).isoformat())
    path = "/admin/prices/"
    rejected = management.call(management.admin_key, "DELETE", path + held["id"], status=409)
    assert rejected["error"]["code"] == "price_holds"
    management.call(management.admin_key, "DELETE", path + later["id"])
    management.call(management.admin_key, "DELETE", path + later["id"], status=404)
    moment_s = utc_now().timestamp() + 7200
    assert management.control.prices.at("chat", moment_s).price_id == held["id"]


WRONG = [
    ({"input": -1}, "input"),
    ({"output": 1e9}, "output"),
    ({"input": 0.0000001}, "input"),
    ({"model": ""}, "model"),
    ({"valid_from": "2020-01-01T00:00:00Z"}, "valid_from"),
    ({"valid_from": "2020-01-01T00:00:00"}, "valid_from"),
    ({"discount": 3}, "discount"),
]


def test_price_errors_name_the_field(management):
    for wrong, field in WRONG:
        management.rejected(
            management.admin_key, "POST", "/admin/prices", CHAT | wrong, param=field
        )


def test_price_changes_are_audited_and_for_admins_only(management, sessions):
    made = create(management, valid_from=(utc_now() + timedelta(hours=1)).isoformat())
    management.call(management.admin_key, "DELETE", "/admin/prices/" + made["id"])
    with sessions() as session:
        entries = session.scalars(select(AuditEntry).where(AuditEntry.target == made["id"])).all()
    assert {entry.action for entry in entries} == {"price.create", "price.delete"}
    assert all("0.01875" in str((entry.before, entry.after)) for entry in entries)
    tenant = management.new_tenant("a")
    for method, path in (("GET", ""), ("POST", ""), ("DELETE", "/price_x")):
        body = CHAT if method == "POST" else None
        management.call(tenant["api_key"], method, "/admin/prices" + path, body, status=403)
