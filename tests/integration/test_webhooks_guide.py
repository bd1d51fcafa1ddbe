"""The commands, payloads and Python code of docs/guide/webhooks.md work unchanged."""

import json
import re
import shlex
from pathlib import Path

import pytest
from served_app import served

from fairserve.platform.background.alarms.alarm import AlarmFinding, AlarmKey
from fairserve.platform.background.alarms.open_alarms import OpenAlarms
from fairserve.platform.background.alarms.store import save as save_alarms
from fairserve.platform.background.webhooks import url_checks
from fairserve.platform.background.webhooks.delivery import guard_of
from fairserve.platform.background.webhooks.event_types import TYPES
from fairserve.platform.base.money import NANO
from fairserve.platform.db.base import new_id
from fairserve.platform.db.webhooks import WebhookDelivery
from fairserve.platform.server.cli import main

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "webhooks.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
]


@pytest.fixture
def world(webhooks_world):
    return webhooks_world


@pytest.fixture
def url(world):
    """Yield the URL of the application on a port."""
    with served(world.management.client) as url:
        yield url


def test_the_commands_work_unchanged(world, url, monkeypatch, capsys):
    monkeypatch.setattr(
        url_checks, "guard_of", lambda settings: guard_of(settings, lambda *_: ["8.8.8.8"])
    )
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("FAIRSERVE_URL", url)
    monkeypatch.setenv("FAIRSERVE_API_KEY", world.management.admin_key)
    found = {"tn": world.tenant["id"]}
    for command in COMMANDS:
        for prefix, name in found.items():
            command = command.replace(f"{prefix}_...", name)
        if "--state dead" in command:
            world.clock.catch_up()
            assert world.deliver(resolve=lambda *_: ["127.0.0.1"]) == 1
        if "--event" in command:
            with world.sessions.begin() as session:
                table = WebhookDelivery.__table__
                session.execute(table.update().values(state="delivered"))
        assert main(shlex.split(command)[1:]) == 0, (command, capsys.readouterr().err)
        out = capsys.readouterr().out
        for prefix in ("wh", "evt"):
            if names := re.findall(rf"\b{prefix}_[0-9a-f]{{32}}\b", out):
                found[prefix] = names[-1]
        if " add " in command:
            assert re.search(r"^secret +whsec_\S+$", out, re.MULTILINE), out
    assert len(COMMANDS) == 10
    assert world.endpoints == []


def test_the_payloads_have_the_fields_that_the_guide_shows(world):
    shown = {
        each["type"]: each
        for each in map(json.loads, re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL))
    }
    contract = {"soft_budget": 1, "max_budget": 3, "budget_duration": "1mo"}
    path = f"/v1/apps/{world.app['id']}"
    world.call("PATCH", path, {"user_contract": contract})
    one = world.register(events=list(TYPES))
    world.call("POST", f"/v1/webhooks/{one['id']}/test", status=202)
    world.write([world.record("a", cost=2 * NANO), world.refused("b")], [world.run()])
    alarms = OpenAlarms(lambda: new_id("al"))
    key = AlarmKey("calls_waiting", world.tenant["id"], world.app["id"])
    alarms.update(
        [AlarmFinding(key, "bad", {"wait_s": 12.0, "usual_wait_s": 1.0, "queued": 9})],
        world.clock().timestamp(),
    )
    with world.sessions.begin() as session:
        save_alarms(session, alarms)
    sent = {event.type: event.payload for event in world.events}
    assert sent.keys() == shown.keys() | {"webhook.test"}
    for name, example in shown.items():
        assert sent[name].keys() == example.keys()
        assert sent[name]["data"].keys() == example["data"].keys(), name
    budget, example = sent["budget.reached"]["data"], shown["budget.reached"]["data"]
    assert (budget["scope"], budget["end"]) == (example["scope"], example["end"])
    assert sent["budget.share"]["data"]["share"] == shown["budget.share"]["data"]["share"]


def test_the_python_code_of_the_guide_verifies_messages(world):
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    scope = {}
    exec(code, scope)
    verify = scope["verify"]
    one = world.register()
    rotated = world.call("POST", f"/v1/webhooks/{one['id']}/rotate", status=201)
    world.write(runs=[world.run()])
    world.deliver()
    (message,) = world.receiver.received
    for secret in (one["secret"], rotated["secret"]):
        assert verify(secret, message.headers, message.body)
    assert not verify(one["secret"], message.headers, message.body + b" ")
    assert not verify(world.register()["secret"], message.headers, message.body)
    old = message.headers | {"webhook-timestamp": "1700000000"}
    assert not verify(one["secret"], old, message.body)
    world.write(runs=[world.run("late")])
    world.clock.pass_s(-600)
    with world.sessions.begin() as session:
        table = WebhookDelivery.__table__
        session.execute(table.update().values(next_attempt_at=world.clock.time))
    world.deliver()
    late = world.receiver.received[-1]
    assert late.id != message.id
    assert not verify(rotated["secret"], late.headers, late.body), "signed too long ago"
