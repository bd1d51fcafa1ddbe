"""Live traffic is exported as a trace while the server runs, and replayed."""

import contextlib
import gzip
import io
import json

import pytest
from processes import eventually
from torch_worker import MODEL, shared_worker

from fairserve.benchmarks.traces.reading import read_trace
from fairserve.platform.server import cli

SYSTEM = "You are the archivist of a small museum of tides and clocks. " * 8
SECRET_WORDS = ("archivist", "museum", "zephyr", "ann-of-the-harbour", "bob-of-the-hill")
ANN, BOB = SECRET_WORDS[3:]


@pytest.fixture(scope="module")
def recording(start_server):
    """Yield a server that has served a few runs, and the requests of its clients."""
    server = start_server("--worker-urls", shared_worker().url)
    other = server.admin("POST", "/admin/tenants", json={"name": "other"}).json()
    foreign = server.openai(server.new_key("app", tenant_key=other["api_key"]))
    client = server.openai()

    def ask(run, user, text, *, of=client, parents=None, tokens=5, **headers):
        named = {"X-Interaction-Id": run} if run else {}
        if parents is not None:
            named["X-Parent-Ids"] = ",".join(parents)
        return of.chat.completions.create(
            model=MODEL,
            user=user,
            messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
            max_tokens=tokens,
            extra_headers={**named, **headers},
        ).id

    plan = ask("fan", ANN, "Plan the zephyr room.", **{"X-Agent": "zephyr-planner"})
    left = ask("fan", ANN, "Left zephyr wing.", parents=[plan], tokens=7)
    right = ask("fan", ANN, "Right zephyr wing.", parents=[plan], tokens=9)
    ask("fan", ANN, "Join zephyr.", parents=[left, right], tokens=3, **{"X-Interaction-Final": "1"})
    for turn in range(3):
        ask("chain", BOB, f"Turn {turn} zephyr.")
    ask(None, BOB, "Alone, zephyr.")
    ask("foreign", ANN, "Plan the zephyr room.", of=foreign)
    return server


CALLS = 9


@pytest.fixture(scope="module")
def exported(recording, tmp_path_factory):
    """Return the trace, exported by the command while the server runs."""
    path = tmp_path_factory.mktemp("export") / "traffic.jsonl.gz"

    def export():
        where = ["--since", "1h", "--data-dir", str(recording.data_dir), "--out", str(path)]
        with contextlib.redirect_stderr(io.StringIO()) as message:
            code = cli.main(["trace", "export", *where])
        return code == 0 and f", {CALLS} calls; " in message.getvalue()

    eventually(export, "the recorder has not written all calls")
    assert recording.runs()
    return path


@pytest.fixture(scope="module")
def trace(exported):
    return read_trace(exported)


def run_of(trace, calls, app=0):
    """Return the only run with ``calls`` calls, in order of arrival."""
    return [run for run in trace.interactions if len(run.calls) == calls][app]


def test_calls_of_a_run_keep_their_dependencies(trace):
    assert sorted(len(run.calls) for run in trace.interactions) == [1, 1, 3, 4]
    deps = {call.call_id: call.deps for call in run_of(trace, 4).calls}
    assert deps == {"1": (), "2": ("1",), "3": ("1",), "4": ("2", "3")}
    chain = {call.call_id: call.deps for call in run_of(trace, 3).calls}
    assert chain == {"1": (), "2": ("1",), "3": ("2",)}
    for run in trace.interactions:
        assert all(0 <= call.gap_s < 60 for call in run.calls)
    arrivals = [run.arrival_s for run in trace.interactions]
    assert arrivals[0] == 0.0
    assert arrivals == sorted(arrivals)


def test_tokens_equal_those_of_the_ledger(recording, trace):
    rows = eventually(
        lambda: rows if len(rows := recording.rows()) == CALLS else None, "the ledger lacks rows"
    )
    calls = [call for run in trace.interactions for call in run.calls]
    for field, of_call in (
        ("input_tokens", lambda call: call.input_tokens),
        ("system_tokens", lambda call: call.system_tokens),
        ("output_tokens", lambda call: call.output_tokens),
    ):
        assert sorted(row[field] for row in rows) == sorted(map(of_call, calls)), field
    assert [call.output_tokens for call in run_of(trace, 4).calls] == [5, 7, 9, 3]
    apps = {row["app_id"]: row["tenant_id"] for row in rows}
    assert {run.app: run.tenant for run in trace.interactions} == apps


def test_shared_prefixes_share_ids_within_a_tenant_only(trace):
    by_tenant = {}
    for run in trace.interactions:
        ids = [set(call.block_ids) for call in run.calls]
        by_tenant.setdefault(run.tenant, []).extend(ids)
    ours, foreign = sorted(by_tenant.values(), key=len, reverse=True)
    assert len(ours) == CALLS - 1
    shared = set.intersection(*ours)
    system_tokens = min(call.system_tokens for run in trace.interactions for call in run.calls)
    assert abs(len(shared) - system_tokens // trace.block_tokens) <= 1
    assert len(foreign) == 1
    assert len(foreign[0]) >= len(shared)
    assert not set.union(*ours) & foreign[0]


def test_users_are_distinguished_by_pseudonyms(exported, trace):
    users = [run.user for run in trace.interactions]
    fan, chain = run_of(trace, 4).user, run_of(trace, 3).user
    assert fan != chain
    assert len(set(users)) == 3, "of another tenant, ann is another user"
    assert users.count(chain) == 2
    text = gzip.decompress(exported.read_bytes()).decode()
    assert not any(word in text for word in (*SECRET_WORDS, "chain", "planner"))


def test_the_recording_contains_no_text(recording):
    for path in (recording.data_dir / "recording").iterdir():
        text = path.read_bytes()
        assert not any(word.encode() in text for word in (*SECRET_WORDS, "chain", "planner"))


def test_the_trace_can_be_simulated(exported, tmp_path, capsys):
    out = tmp_path / "out.json"
    asked = ["--trace", str(exported), "--system", "fcfs", "fairserve", "--json", str(out)]
    assert cli.main(["simulate", *asked]) == 0
    for summary in json.loads(out.read_text())["systems"].values():
        assert summary["completed_interactions"] == 4
        assert summary["prefix_hit_rate"] > 0.3


def test_disabling_the_recording_deletes_it(recording, exported):
    folder = recording.data_dir / "recording"
    assert list(folder.iterdir())
    assert recording.stop() == 0
    recording.flags = (*recording.flags, "--no-trace-recording")
    recording.start()
    assert list(folder.iterdir()) == []
    assert recording.post("/v1/completions", {"model": MODEL, "prompt": "a"}).status_code == 200
    assert list(folder.iterdir()) == []
