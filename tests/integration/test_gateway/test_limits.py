"""Test quotas over HTTP: budgets under load and after a crash, rates, parallel calls, models."""

import asyncio
import random
from decimal import Decimal

import httpx
import openai
import pytest
from constants import defaults
from processes import eventually

from fairserve.platform.control import options

PATH = "/v1/chat/completions"
NANO = 10**9
PRICE = {"model": "*", "input": 1000, "cached_input": 500, "output": 2000}
"""Prices per million tokens: a scripted call costs 8 x 0.001 + 4 x 0.0005 + 3 x 0.002 = 0.016."""
COST = Decimal("0.016")
BUDGET = Decimal("0.6")
CROWDED = {"max_budget": float(BUDGET), "budget_duration": "12mo"}


@pytest.fixture(scope="module")
def limited(start_server, scripted):
    """Yield a server with prices, in front of two scripted workers."""
    urls = ",".join(worker.url for worker in scripted)
    flags = ("--max-queue-wait-s", "60", "--keepalive-s", "0.05")
    return priced(start_server("--worker-urls", urls, *flags))


def priced(server):
    assert server.admin("POST", "/admin/prices", json=PRICE).status_code == 201
    return server


class Client:
    """An app with a quota, and calls with its key."""

    def __init__(self, server, name, **limits):
        stage = {"input_tokens": 30, "output_tokens": 20}
        profile = {"stages": [stage], "calls_per_interaction": 3}
        self.server = server
        body = {"name": name, "profile": profile, **limits}
        made = server.request("POST", "/v1/apps", server.tenant_key, json=body)
        assert made.status_code == 201, made.text
        self.app_id, self.key = made.json()["id"], made.json()["api_key"]

    def change(self, **limits):
        path = f"/v1/apps/{self.app_id}"
        answer = self.server.request("PATCH", path, self.server.tenant_key, json=limits)
        assert answer.status_code == 200, answer.text

    def body(self, text="ok", **more):
        messages = [{"role": "user", "content": text}]
        return {"model": "scripted", "messages": messages, "max_tokens": 20, **more}

    def call(self, text="ok", run=None, **more):
        headers = {"X-Interaction-Id": run} if run else {}
        return self.server.post(PATH, self.body(text, **more), self.key, headers=headers)

    def rows(self):
        return self.server.rows(app_id=self.app_id)

    def spent(self):
        return Decimal(sum(row["cost"] for row in self.rows())) / NANO


def remaining(answer):
    return Decimal(answer.headers["x-fairserve-budget-remaining"])


def test_simultaneous_clients_never_exceed_a_budget(limited):
    spend(Client(limited, "crowd", contract=CROWDED))


def spend(client):
    """Let 80 simultaneous clients spend the budget ``CROWDED``; return the rest of it."""
    asyncio.run(_crowd(client))
    rows = eventually(lambda: [r for r in client.rows() if r["outcome"] == "completed"])
    rejected = client.call()
    assert rejected.status_code == 429
    assert rejected.json()["error"]["code"] == "insufficient_quota"
    assert rejected.headers["x-should-retry"] == "false"
    assert int(rejected.headers["retry-after"]) > 0
    left = remaining(rejected)
    eventually(lambda: client.spent() == BUDGET - left, lambda: (client.spent(), left))
    assert 0 <= left < Decimal("0.06"), "what is left is less than a call may cost"
    assert {row["cost"] for row in rows} == {int(COST * NANO)}
    failed = [row for row in client.rows() if row["outcome"] in ("failed", "refused", "expired")]
    assert failed
    assert all(row["cost"] == 0 for row in failed)
    return left


async def _crowd(client):
    """Each rejected client retries when a call has ended, until the budget is spent."""
    sent, ended = 0, asyncio.Event()
    async with httpx.AsyncClient(
        base_url=client.server.url,
        headers={"Authorization": f"Bearer {client.key}"},
        limits=httpx.Limits(max_connections=80),
        timeout=90,
    ) as http:

        def wake():
            nonlocal ended
            ended.set()
            ended = asyncio.Event()

        async def one(number):
            nonlocal sent
            chance = random.Random(number)
            while True:
                text = chance.choices(("ok", "break", "die"), (30, 1, 1))[0]
                body = client.body(f"{text} {number}", user=f"u{number % 7}")
                sent += 1
                try:
                    answer = await http.post(PATH, json=body)
                finally:
                    sent -= 1
                waits = "retry-after" in answer.headers and sent
                if answer.status_code == 429:
                    error = answer.json()["error"]
                    if error["code"] == "insufficient_quota":
                        wake()
                        return
                    assert error["fairserve"]["reason"] == "contract_budget_held", error
                if waits:
                    await ended.wait()
                else:  # it ended, or all others wait
                    wake()

        async with asyncio.timeout(120):
            await asyncio.gather(*(one(number) for number in range(80)))


def test_a_new_budget_includes_earlier_spending(limited):
    client = Client(limited, "later")
    for _ in range(3):
        assert client.call().status_code == 200
    client.change(contract={"max_budget": 1, "budget_duration": "1mo"})
    client.change(user_contract={"max_budget": 5, "budget_duration": "1mo"})
    assert remaining(client.server.request("GET", "/v1/models", client.key)) == 1 - 3 * COST
    answer = client.call(user="ann")
    assert answer.headers["x-fairserve-budget-scope"] == "app"
    client.change(contract={"max_budget": float(3 * COST)})
    assert client.call().json()["error"]["code"] == "insufficient_quota"


def test_above_the_soft_limit_calls_warn_or_new_runs_are_rejected(limited):
    soft = {"soft_budget": float(COST * 3 / 2), "max_budget": 9, "budget_duration": "1d"}
    client = Client(limited, "soft", contract=soft)
    assert "x-fairserve-budget-soft-end" not in client.call("ok", run="R").headers
    warned = client.call("ok", run="R")
    assert warned.headers["x-fairserve-budget-soft-end"] == "passed"
    client.change(contract={"soft_end": "finish_runs"})
    assert client.call("ok", run="R").status_code == 200, "its run is finished"
    error = client.call("ok", run="S").json()["error"]
    assert (error["code"], error["fairserve"]["reason"]) == (
        "insufficient_quota",
        "contract_soft_budget",
    )


def test_every_answer_has_the_remaining_quota(limited):
    client = Client(limited, "headers", user_contract={"rpm_limit": 3, "tpm_limit": 1000})
    first = client.call()
    assert first.headers["x-ratelimit-limit-requests"] == "3"
    assert first.headers["x-ratelimit-remaining-requests"] == "2"
    assert first.headers["x-fairserve-limit-requests"] == "contract; scope=user"
    assert first.headers["x-ratelimit-remaining-tokens"] == "985"
    wrong = client.server.post(PATH, {"model": "scripted"}, client.key)
    assert wrong.status_code == 400
    assert wrong.headers["x-ratelimit-remaining-requests"] == "2"
    assert client.call(temperature=99).headers["x-ratelimit-remaining-requests"] == "2"
    assert client.call().status_code == client.call().status_code == 200
    rejected = client.call()
    assert rejected.status_code == 429
    assert rejected.headers["x-ratelimit-remaining-requests"] == "0"
    assert 1 <= int(rejected.headers["retry-after"]) <= 61
    error = rejected.json()["error"]["fairserve"]
    assert (error["kind"], error["retry"], error["limit"]) == ("contract", "certain", 3)
    row = client.server.row(app_id=client.app_id, outcome="refused")
    assert row["cost"] == 0
    run = client.server.post("/v1/interactions", {}, client.key)
    assert (run.status_code, run.headers["x-ratelimit-remaining-requests"]) == (201, "0")


def test_a_failed_call_releases_its_slot_and_request(limited):
    client = Client(limited, "failing", contract={"rpm_limit": 1, "max_parallel_requests": 1})
    assert client.call("break").status_code == 502
    assert client.call("refuse").status_code == 400
    assert client.call("ok").status_code == 200
    assert client.call("ok").status_code == 429


def test_excess_parallel_calls_are_rejected_and_retried(limited, scripted):
    client = Client(limited, "parallel", contract={"max_parallel_requests": 1})
    waiting = limited.openai(client.key, max_retries=5)
    with limited.http.stream(
        "POST",
        PATH,
        json=client.body("hold its place", stream=True),
        headers={"Authorization": f"Bearer {client.key}"},
    ) as held:
        lines = held.iter_lines()
        eventually(lambda: any("its place" in worker.holding for worker in scripted))
        rejected = client.call()
        assert rejected.json()["error"]["fairserve"]["reason"] == "contract_parallel"
        assert rejected.headers["x-fairserve-retry"] == "best_effort"
        for worker in scripted:
            worker.release()
        assert list(lines)
    answer = waiting.chat.completions.create(**client.body("ok"))
    assert answer.choices[0].message.content == "one two three"


def test_only_allowed_models_are_listed_and_served(limited):
    client = Client(limited, "models", contract={"allowed_models": ["other"]})
    assert client.server.request("GET", "/v1/models", client.key).json()["data"] == []
    found = client.server.request("GET", "/v1/models/scripted", client.key)
    assert found.status_code == 404
    with pytest.raises(openai.PermissionDeniedError, match="does not allow this model"):
        limited.openai(client.key).chat.completions.create(**client.body())
    client.change(contract={"allowed_models": None})
    assert client.call().status_code == 200


def test_a_program_ends_when_its_budget_is_spent(limited):
    client = Client(limited, "program", contract={"max_budget": 0, "budget_duration": "1d"})
    program = {"nodes": [{"id": "a", "prompt": "ok", "model": "scripted"}]}
    made = client.server.post("/v1/interactions", program, client.key)
    assert made.status_code == 201, made.text
    path = f"/v1/interactions/{made.json()['id']}"

    def ended():
        run = client.server.request("GET", path, client.key).json()
        return run if run["state"] not in ("open", "under_way") else None

    assert eventually(ended)["state"] in ("aborted", "failed")


def test_open_runs_of_a_user_are_bounded(start_server, scripted):
    with defaults(options, "AdmissionOptions", openings_per_minute=2):
        server = start_server("--worker-urls", scripted[0].url)
    client = Client(server, "opens")

    def opened(user):
        return server.post("/v1/interactions", {"user": user}, client.key)

    assert [opened("u").status_code for _ in range(2)] == [201, 201]
    rejected = opened("u")
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (429, "too_many_openings")
    assert 0 < int(rejected.headers["Retry-After"]) <= 60
    assert opened("v").status_code == 201
    assert client.call(user="u").status_code == 200, "openings are no calls"
