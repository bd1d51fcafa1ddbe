"""Service tiers, by the vendors' clients: the tier that is given, recorded and paid, and its grant."""

import json
from contextlib import closing

import anthropic
import openai
import pytest
from processes import eventually
from scripted_worker import ScriptedWorker

PRICE = {"model": "*", "input": 1000, "output": 2000, "flex_multiplier": 0.5}


class Tiers:
    """A server with prices, a worker, and apps with and without the grant."""

    def __init__(self, server, worker):
        self.server, self.worker = server, worker
        price = {**PRICE, "priority_multiplier": 2.5}
        assert server.admin("POST", "/admin/prices", json=price).status_code == 201
        self.plain = server.new_app({"api_key": server.tenant_key}, "plain")
        self.vip = server.new_app({"api_key": server.tenant_key}, "vip")
        self.grant(4)

    def grant(self, weight, key=None):
        body, path = {"priority_weight": weight}, f"/v1/apps/{self.vip['id']}"
        key = key or self.server.admin_key
        tenant = {"tenant": self.vip["tenant_id"]} if key == self.server.admin_key else {}
        return self.server.request("PATCH", path, key, json=body, params=tenant)

    def client(self, app):
        return self.server.openai(app["api_key"])

    def row(self, answer_id):
        return self.server.row(call_id=answer_id.split("-", 1)[-1].removeprefix("resp_"))


@pytest.fixture(scope="module")
def tiers(start_server):
    with closing(ScriptedWorker()) as worker:
        yield Tiers(start_server("--worker-urls", worker.url), worker)


def asked(**more):
    return {
        "model": "scripted",
        "messages": [{"role": "user", "content": "ok"}],
        "max_tokens": 20,
        **more,
    }


@pytest.mark.parametrize(
    ("requested", "given"),
    [
        *(("auto", "default"), ("default", "default"), ("flex", "flex")),
        *(("priority", "priority"), ("fast", "priority")),
    ],
)
def test_chat_answers_and_rows_name_the_tier_that_was_given(tiers, requested, given):
    client = tiers.client(tiers.vip)
    whole = client.chat.completions.create(**asked(service_tier=requested))
    assert whole.service_tier == given
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            **asked(service_tier=requested, stream=True, stream_options=options)
        )
    )
    assert [chunk.service_tier for chunk in chunks] == [given] * len(chunks)
    assert chunks[-1].usage is not None
    for answer in (whole, chunks[-1]):
        row = tiers.row(answer.id)
        assert (row["service_tier"], row["outcome"]) == (given, "completed")
        assert row["cost"] == cost(row, given)
    assert all("service_tier" not in body for body in tiers.worker.bodies)


def cost(row, tier):
    """Return the cost by the prices of a tier: halves of whole picounits do not occur."""
    prompt = row["input_tokens"] + row["system_tokens"]
    factor = {"default": 1, "flex": 0.5, "priority": 2.5}[tier]
    return (prompt * 1000 + row["output_tokens"] * 2000) * factor * 1000


def test_an_answer_whose_client_requests_no_tier_names_none(tiers):
    answer = tiers.client(tiers.vip).chat.completions.create(**asked())
    assert answer.service_tier is None
    assert tiers.row(answer.id)["service_tier"] == "default"


def test_priority_needs_the_operators_grant(tiers):
    before = len(tiers.worker.bodies)
    for create, body in (
        (tiers.client(tiers.plain).chat.completions.create, asked()),
        (tiers.client(tiers.plain).responses.create, {"model": "scripted", "input": "ok"}),
    ):
        with pytest.raises(openai.BadRequestError, match="the operator has not granted") as error:
            create(**body, service_tier="priority")
        assert (error.value.param, error.value.code) == ("service_tier", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError) as error:
        tiers.client(tiers.vip).chat.completions.create(**asked(service_tier="scale"))
    assert error.value.param == "service_tier"
    assert len(tiers.worker.bodies) == before


def test_a_user_has_priority_by_a_grant_of_its_own(tiers):
    """In an app without one, for the user that has it only, and as Anthropic's ``auto``."""
    path = f"/admin/users/{tiers.plain['tenant_id']}/zoe"
    body = asked(service_tier="priority")
    client = tiers.client(tiers.plain)
    assert tiers.server.admin("PUT", path, json={"priority_weight": 0.5}).status_code == 400
    assert tiers.server.admin("PUT", path, json={"priority_weight": 4}).status_code == 200
    assert client.chat.completions.create(**body, user="zoe").service_tier == "priority"
    with pytest.raises(openai.BadRequestError, match="not granted to this app or user"):
        client.chat.completions.create(**body, user="ann")
    options = {"api_key": tiers.plain["api_key"], "base_url": tiers.server.url, "max_retries": 0}
    with anthropic.Anthropic(**options) as messages:
        for user, given in (("zoe", "priority"), ("ann", "standard")):
            answer = messages.messages.create(
                model="scripted",
                max_tokens=20,
                messages=asked()["messages"],
                metadata={"user_id": user},
                service_tier="auto",
            )
            assert answer.usage.service_tier == given
    assert tiers.server.admin("DELETE", path).json()["priority_weight"] is None
    with pytest.raises(openai.BadRequestError, match="not granted"):
        client.chat.completions.create(**body, user="zoe")


def test_a_tenant_neither_grants_nor_takes_the_tier(tiers):
    for weight in (9, None):
        answer = tiers.grant(weight, tiers.server.tenant_key)
        assert (answer.status_code, answer.json()["error"]["param"]) == (403, "priority_weight")
    assert tiers.grant(0.5).status_code == 400
    assert tiers.grant(3).json()["priority_weight"] == 3
    (entry, *_) = tiers.server.admin("GET", "/admin/audit", params={"action": "app.change"}).json()[
        "items"
    ]
    assert entry["after"]["priority_weight"] == 3
    tiers.grant(None)
    with pytest.raises(openai.BadRequestError, match="has not granted"):
        tiers.client(tiers.vip).chat.completions.create(**asked(service_tier="priority"))
    tiers.grant(4)


def test_responses_name_the_tier(tiers):
    client = tiers.client(tiers.vip)
    for requested, given in (("auto", "default"), ("flex", "flex"), ("priority", "priority")):
        answer = client.responses.create(model="scripted", input="ok", service_tier=requested)
        assert answer.service_tier == given
        assert tiers.row(answer.id)["service_tier"] == given
    with client.responses.stream(model="scripted", input="ok", service_tier="flex") as stream:
        ends = [event.response.service_tier for event in stream if hasattr(event, "response")]
    assert set(ends) == {"flex"}


def test_messages_have_priority_where_their_app_may(tiers):
    body = {"model": "scripted", "max_tokens": 20, "messages": asked()["messages"]}
    for app, requested, given in (
        (tiers.vip, "auto", "priority"),
        (tiers.vip, "standard_only", "standard"),
        (tiers.plain, "auto", "standard"),
    ):
        options = {"api_key": app["api_key"], "base_url": tiers.server.url, "max_retries": 0}
        with anthropic.Anthropic(**options) as client:
            answer = client.messages.create(**body, service_tier=requested)
            assert answer.usage.service_tier == given
            row = tiers.server.row(call_id=answer.id.removeprefix("msg_"))
            assert row["service_tier"] == given.replace("standard", "default")
            with client.messages.stream(**body, service_tier=requested) as stream:
                assert stream.get_final_message().usage.service_tier == given
            assert client.messages.create(**body).usage.service_tier == "standard"


def test_lines_of_a_batch_are_flex_calls(tiers):
    client = tiers.client(tiers.vip)
    lines = [{}, {"service_tier": "auto"}, {"service_tier": "priority"}]
    text = "\n".join(
        json.dumps(
            {
                "custom_id": str(number),
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": asked(**more),
            }
        )
        for number, more in enumerate(lines)
    )
    file = client.files.create(file=("lines.jsonl", text.encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    batch = eventually(
        lambda: (
            found if (found := client.batches.retrieve(batch.id)).status == "completed" else None
        ),
        "the batch ends",
    )
    found = client.files.content(batch.output_file_id).text.splitlines()
    bodies = [json.loads(line)["response"]["body"] for line in found]
    assert [body["service_tier"] for body in bodies] == ["flex", "flex"]
    (failed,) = client.files.content(batch.error_file_id).text.splitlines()
    assert "whose tier is 'flex'" in failed
    rows = [tiers.row(body["id"]) for body in bodies]
    assert [row["service_tier"] for row in rows] == ["flex", "flex"]
    assert [row["cost"] for row in rows] == [cost(row, "flex") for row in rows]


def test_usage_reports_group_by_tier(tiers):
    app = tiers.server.new_app({"api_key": tiers.server.tenant_key}, "reported")
    client = tiers.client(app)
    made = [client.chat.completions.create(**asked(service_tier=tier)) for tier in ("flex", "auto")]
    costs = {row["service_tier"]: row["cost"] / 1e9 for row in map(tiers.row, (a.id for a in made))}
    report = tiers.server.wait_for_report(
        f"/admin/usage?app={app['id']}&group_by=service_tier",
        lambda found: found["sums"]["calls"] == 2,
    )
    assert {row["service_tier"]: row["cost"] for row in report["items"]} == costs
    assert report["sums"]["cost"] == pytest.approx(sum(costs.values()))
