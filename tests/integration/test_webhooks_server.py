"""Test the webhooks of a whole server, from the request to the receiver."""

import json

import pytest
from processes import eventually
from sqlalchemy import select
from standardwebhooks import Webhook
from webhook_world import EVERYTHING, Receiver
from whole_server import WholeServer

from fairserve.platform.background.jobs import jobs
from fairserve.platform.db.webhooks import WebhookDelivery

HOOKS = {"webhook_allowed_networks": "127.0.0.0/8"}


@pytest.fixture(autouse=True)
def quick_jobs(monkeypatch):
    monkeypatch.setattr(jobs, "WEBHOOKS_INTERVAL_S", 0.05)


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


def test_events_of_a_server_are_delivered_signed(tmp_path, receiver):
    with WholeServer(tmp_path / "data", **HOOKS) as server:
        tenant, app = server.new_tenant_and_app("acme")
        price = {"model": "scripted", "input": 1000, "output": 1000}
        server.call(server.admin_key, "POST", "/admin/prices", price)
        limits = {"soft_budget": 0.000001, "budget_duration": "1d", "rpm_limit": 1}
        server.call(tenant["api_key"], "PATCH", f"/v1/apps/{app['id']}", {"user_contract": limits})
        body = {"url": receiver.url, "events": EVERYTHING}
        hook = server.call(tenant["api_key"], "POST", "/v1/webhooks", body)
        final = {"X-Interaction-Id": "trip", "X-Interaction-Final": "true"}
        server.chat(app["api_key"], "say hello", user="ann", headers=final)
        rejected = {
            "model": "scripted",
            "user": "ann",
            "messages": [{"role": "user", "content": "x"}],
        }
        answer = server.request("POST", "/v1/chat/completions", app["api_key"], json=rejected)
        assert answer.status_code == 429
        eventually(lambda: len(receiver.received) >= 3, lambda: str(receiver.received))
        by_type = {}
        for message in list(receiver.received):
            body = Webhook(hook["secret"]).verify(message.body, message.headers)
            by_type[body["type"]] = body["data"]
        assert by_type.keys() == set(EVERYTHING)
        run = by_type["interaction.finished"]
        assert (run["interaction_id"], run["user"], run["state"]) == ("trip", "ann", "complete")
        budget = by_type["budget.reached"]
        assert (budget["scope"], budget["user"], budget["end"]) == ("app_user", "ann", "soft")
        assert budget["spent"] > budget["limit"]
        throttled = by_type["calls.throttled"]
        assert (throttled["reason"], throttled["limit"]) == ("contract_rpm", 1)


def test_the_next_server_sends_deliveries_of_a_stopped_one(tmp_path, receiver):
    receiver.hold.clear()
    with WholeServer(tmp_path / "data", **HOOKS) as server:
        tenant, _ = server.new_tenant_and_app("acme")
        body = {"url": receiver.url, "events": EVERYTHING}
        hook = server.call(tenant["api_key"], "POST", "/v1/webhooks", body)
        event = server.call(tenant["api_key"], "POST", f"/v1/webhooks/{hook['id']}/test")
        eventually(lambda: receiver.received)
    receiver.hold.set()
    with WholeServer(tmp_path / "data", **HOOKS) as server:

        def delivered():
            with server.platform.sessions() as session:
                return session.scalars(select(WebhookDelivery.state)).all() == ["delivered"]

        eventually(delivered)
    assert {message.id for message in receiver.received} == {event["event_id"]}
    assert len(receiver.received) == 2
    assert json.loads(receiver.received[0].body)["type"] == "webhook.test"
