"""All reports of one history agree on ``input_tokens``."""

import csv
import io
import json
import re
from dataclasses import replace
from decimal import Decimal

import pyarrow.parquet as pq
import pytest
from export_world import ExportWorld
from usage_histories import START, calls, runs

from fairserve.platform.control.ledger_tables import upsert_calls, upsert_interactions
from fairserve.platform.reporting.usage.rollups import roll_up

INPUT, SYSTEM, CACHED, CALLS = 31, 11_000, 700, 3
PROMPTS = CALLS * (INPUT + SYSTEM)
"""Prompt tokens of the history: 33,093, which the console shows as 33.1k with the number as a hint."""
RUN = "r1"


@pytest.fixture
def world(management):
    """Return a tenant with one run of three calls, each with a system prompt."""
    world = ExportWorld(management)
    owner = {"tenant": world.one["id"], "app": world.app["id"], "user": "u"}
    call = replace(
        calls(1, 1)[0],
        **owner,
        interaction_id=RUN,
        outcome="completed",
        charged=True,
        wasted=False,
        model="m",
        served_model="m",
        accepted_at=START,
        ended_at=START + 9,
        input_tokens=INPUT,
        system_tokens=SYSTEM,
        cached_tokens=CACHED,
        extend_tokens=INPUT + SYSTEM - CACHED,
        output_tokens=5,
        reasoning_tokens=2,
        cost=2 * 10**9,
    )
    run = replace(
        runs(1, 1)[0],
        **owner,
        interaction_id=RUN,
        state="complete",
        opened_at=START,
        ended_at=START + 9,
        wasted_tokens=0,
        waste_cause="",
    )
    with world.sessions.begin() as session:
        tiers = ("default", "flex", "flex")
        upsert_calls(
            session,
            [replace(call, call_id=f"c{n}", service_tier=tier) for n, tier in enumerate(tiers)],
        )
        upsert_interactions(session, [run])
    assert roll_up(world.sessions)
    return world


def test_reports_and_exports_agree_on_input_tokens(world):
    report = world.raw("/v1/usage", group_by="app").json()
    assert report["sums"]["input_tokens"] == report["items"][0]["input_tokens"] == PROMPTS
    assert report["sums"]["system_tokens"] == CALLS * SYSTEM, "a part of them"
    assert report["sums"]["reasoning_tokens"] == CALLS * 2

    for made in (
        world.raw("/v1/usage", group_by="app", format="csv"),
        world.made(group_by="app", format="csv"),
        world.made(kind="interactions", format="csv"),
    ):
        (row,) = csv.DictReader(io.StringIO(made.text, newline=""))
        assert int(row["input_tokens"]) == PROMPTS
    for made in (
        world.raw("/v1/usage", group_by="app", format="parquet"),
        world.made(group_by="app", format="parquet"),
        world.made(kind="interactions", format="parquet"),
    ):
        table = pq.read_table(io.BytesIO(made.content))
        assert table["input_tokens"].to_pylist() == [PROMPTS]
    (line,) = world.made(kind="interactions", format="json").text.splitlines()
    assert json.loads(line)["input_tokens"] == PROMPTS


def test_exports_of_runs_count_their_calls_by_tier(world):
    (line,) = world.made(kind="interactions", format="json").text.splitlines()
    (row,) = csv.DictReader(io.StringIO(world.made(kind="interactions", format="csv").text))
    for run in (json.loads(line), row, *world.raw("/v1/usage/interactions").json()["items"]):
        assert [int(run[name]) for name in ("flex_calls", "priority_calls")] == [2, 0]


def test_reports_and_exports_agree_on_the_cost_of_an_answer(world):
    """Three runs, of which two end with an answer, and calls for 6 in all: 3 for each answer."""
    owner = {"tenant": world.one["id"], "app": world.app["id"], "user": "u"}
    ends = {RUN: "complete", "r2": "complete", "r3": "aborted"}
    run = replace(runs(1, 1)[0], **owner, opened_at=START, ended_at=START + 9)
    with world.sessions.begin() as session:
        upsert_interactions(
            session,
            [replace(run, interaction_id=name, state=state) for name, state in ends.items()],
        )
    assert roll_up(world.sessions)
    report = world.raw("/v1/usage", group_by="app").json()
    assert (report["sums"]["cost"], report["sums"]["cost_per_answer"]) == (6, 3)
    assert report["items"][0]["cost_per_answer"] == 3
    by_model = world.raw("/v1/usage", group_by="model").json()
    assert by_model["items"][0]["cost_per_answer"] is None, "runs have no model"
    for made in (world.raw, world.made):
        path = ["/v1/usage"] if made == world.raw else []
        (row,) = csv.DictReader(io.StringIO(made(*path, group_by="app", format="csv").text))
        assert Decimal(row["cost_per_answer"]) == 3
    table = pq.read_table(io.BytesIO(world.made(group_by="app", format="parquet").content))
    assert table["cost_per_answer"].to_pylist() == [3]
    page = world.raw("/v1/usage", group_by="app", format="html").text
    assert "<dt>Cost per final answer, USD</dt><dd>3.00</dd>" in page
    world.management.client.post("/console/sign-in", data={"key": world.key})
    page = world.management.client.get("/console/usage?group_by=app&from=2026-03-01").text
    assert page.count('data-label="Cost per final answer">3.00<') == 2, "the app, and all"


def test_pages_agree_with_reports_on_input_tokens(world):
    shown = f"{PROMPTS:,}"
    page = world.raw("/v1/usage", group_by="app", format="html").text
    assert f"<dt>Tokens in</dt><dd>{shown}</dd>" in page
    assert page.count(f'<td class="n">{shown}</td>') == 1

    client = world.management.client
    client.post("/console/sign-in", data={"key": world.key})
    page = client.get("/console/usage", params={"group_by": "app", "from": "2026-03-01"}).text
    whole = f'<span title="{shown}">'
    assert re.search(rf"Tokens in</dt><dd>{whole}", page)
    assert re.search(rf'data-label="In"><span>{whole}', page)


def test_runs_and_their_graphs_agree_with_reports_on_input_tokens(world):
    (run,) = world.raw("/v1/usage/interactions").json()["items"]
    assert run["input_tokens"] == PROMPTS
    graph = world.raw(f"/v1/interactions/{RUN}/graph", world.app["api_key"]).json()
    assert sum(node["input_tokens"] for node in graph["nodes"]) == PROMPTS
    page = world.management.client.get(
        f"/console/interactions/{world.one['id']}/{world.app['id']}/{RUN}",
        headers={"cookie": sign_in(world)},
    ).text
    assert page.count(f'data-label="Prompt">{INPUT + SYSTEM:,}<') == CALLS


def sign_in(world):
    """Return the cookie of a new session of the tenant."""
    answer = world.management.client.post(
        "/console/sign-in", data={"key": world.key}, follow_redirects=False
    )
    return answer.headers["set-cookie"].partition(";")[0]
