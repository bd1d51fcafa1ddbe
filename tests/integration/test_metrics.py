"""The gateway's metrics for Prometheus, as a scrape of a running server has them."""

import re

import pytest
from processes import eventually
from prometheus_client.parser import text_string_to_metric_families
from promtool import promtool
from server_client import PROFILE
from whole_server import WholeServer

from fairserve.platform.db.jobs import JobState
from fairserve.platform.server.metrics import metrics as scrape

PATH = "/v1/chat/completions"
UNITS = ("_total", "_seconds", "_tokens", "_bytes", "_ratio", "_info")
COUNTS = {
    "fairserve_ledger_rejected_rows",
    *("fairserve_calls_queued", "fairserve_calls_running", "fairserve_interactions_active"),
    *("fairserve_calls_held", "fairserve_runs_resident", "fairserve_worker_resident_tokens"),
    *("fairserve_background_calls_queued", "fairserve_background_calls_running"),
    *("fairserve_clients_active", "fairserve_worker_calls", "fairserve_workers_needed"),
    *("fairserve_draining", "fairserve_overloaded", "fairserve_worker_state"),
    *("fairserve_worker_circuit_open", "fairserve_database_lease_over", "fairserve_database_up"),
    *("fairserve_job_failures", "fairserve_job_dead", "fairserve_speaks", "fairserve_alarms_open"),
}
"""Gauges of things that are counted, and of states."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with two users and calls of every outcome that is quick."""
    folder = tmp_path_factory.mktemp("data")
    with WholeServer(folder, metrics_top_clients=1) as server:
        tenant, app = server.new_tenant_and_app("one")
        server.tenant, server.its_app = tenant, app
        limited = {"name": "limited", "profile": PROFILE, "contract": {"rpm_limit": 1}}
        limited = server.call(tenant["api_key"], "POST", "/v1/apps", limited)
        for user in ("ann", "ann", "bob-secret"):
            ask(server, app["api_key"], "ok", user=user)
        statuses = [ask(server, limited["api_key"], "ok").status_code for _ in range(2)]
        assert statuses == [200, 429]
        assert "worker_failed" in ask(server, app["api_key"], "break").text
        yield server


def ask(server, key, text, **more):
    """Make a streamed call: others have no time to first token."""
    messages = [{"role": "user", "content": text}]
    body = {"model": "scripted", "messages": messages, "max_tokens": 5, "stream": True, **more}
    return server.request("POST", PATH, key, json=body)


def text_of(server):
    server.platform.metrics._until_s = 0.0  # a scrape of its own
    answer = server.request("GET", "/metrics", server.admin_key)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return answer.text


def read(server):
    """Return the value of each series by its name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text_of(server))
        for sample in family.samples
    }


def series(found, name, **labels):
    return found["fairserve_" + name, *sorted(labels.items())]


def test_calls_tokens_and_times_are_counted(server):
    found = read(server)
    assert series(found, "calls_accepted_total", model="scripted") == 5
    assert series(found, "role_info", role="all") == series(found, "speaks") == 1
    assert series(found, "log_lag_seconds") == 0
    assert series(found, "calls_ended_total", model="scripted", outcome="completed") == 4
    assert series(found, "calls_ended_total", model="scripted", outcome="failed") == 1
    (reason,) = [dict(key[1:])["reason"] for key in found if key[0].endswith("rejected_total")]
    assert reason == "contract_rpm"
    tokens = {
        kind: series(found, "call_tokens_total", model="scripted", kind=kind)
        for kind in ("prompt", "cached", "output")
    }
    assert tokens == {"prompt": 5 * 12, "cached": 5 * 4, "output": 4 * 3 + 2}
    for name in ("queue", "ttft", "duration"):
        assert series(found, f"call_{name}_seconds_count", model="scripted") == 5
        assert series(found, f"call_{name}_seconds_sum", model="scripted") > 0
        assert series(found, f"call_{name}_seconds_bucket", model="scripted", le="+Inf") == 5
    labels = {"method": "POST", "route": PATH, "status": "429"}
    assert series(found, "http_requests_total", **labels) == 1


def test_state_is_shown(server):
    found = read(server)
    assert series(found, "overloaded", model="scripted") == 0
    assert series(found, "load_capacity_tokens", model="scripted") == 1024
    assert series(found, "worker_state", worker="w0", state="ready") == 1
    assert series(found, "worker_state", worker="w0", state="joining") == 0
    assert series(found, "worker_circuit_open", worker="w0") == 0
    assert series(found, "journal_bytes") > 0
    assert series(found, "ledger_waiting_seconds") == 0
    assert series(found, "database_up") == 1
    assert server.platform.ledger.flush(20)
    assert series(read(server), "ledger_lag_bytes") == 0


def test_only_the_first_clients_have_names_and_the_others_are_one(server):
    text = text_of(server)
    found = read(server)
    ann = {"tenant": server.tenant["id"], "app": server.its_app["id"], "user": "ann"}
    other = {"tenant": "other", "app": "other", "user": "other"}
    served = [series(found, "client_served_ratio", **each) for each in (ann, other)]
    entitled = [series(found, "client_entitled_ratio", **each) for each in (ann, other)]
    assert served[0] == pytest.approx(2 * (12 + 2 * 3) / (5 * (12 + 6) - 2))
    assert sum(served) == pytest.approx(1)
    assert sum(entitled) == pytest.approx(1)
    assert "bob-secret" not in text
    assert series(found, "clients_active") == 4  # those without a user are their apps


def test_strangers_choose_no_labels(server):
    before = len(read(server))
    for number in range(5):
        server.client.get(f"/nowhere/{number}")
        server.client.request(f"METHOD{number}", "/nowhere")
    labels = {"route": "unmatched", "status": "404"}
    found = read(server)
    assert series(found, "http_requests_total", method="GET", **labels) == 5
    assert series(found, "http_requests_total", method="other", **labels) == 5
    assert len(found) <= before + 2


def test_names_follow_the_conventions(server):
    families = list(text_string_to_metric_families(text_of(server)))
    ours = [family for family in families if family.name.startswith("fairserve_")]
    assert len(ours) > 30
    for family in ours:
        assert re.fullmatch(r"fairserve_[a-z_]+", family.name)
        assert family.documentation.endswith((".", "calls."))
        names = {sample.name for sample in family.samples}
        if family.type == "counter":
            assert all(name.endswith("_total") for name in names)
        elif family.name not in COUNTS:
            assert family.name.endswith(UNITS), family.name
    assert all(family.name.startswith(("fairserve_", "process_")) for family in families)


def test_promtool_finds_nothing(server):
    promtool("check", "metrics", text=text_of(server))


@pytest.mark.parametrize("whose", ["nobody", "app", "tenant"])
def test_others_do_not_read_them(server, whose):
    keys = {"app": server.its_app["api_key"], "tenant": server.tenant["api_key"], "nobody": None}
    answer = server.request("GET", "/metrics", keys[whose])
    assert answer.status_code == (401 if whose == "nobody" else 403)


def test_scrapes_at_once_are_one_and_a_database_that_hangs_delays_none(server, monkeypatch):
    first = text_of(server)
    assert server.request("GET", "/metrics", server.admin_key).text == first
    monkeypatch.setattr(scrape, "JOBS_S", 0.0)
    found = read(server)
    assert series(found, "database_up") == 0
    assert series(found, "calls_running") == 0


def test_failing_jobs_are_shown(server):
    with server.platform.sessions.begin() as session:
        state = session.get(JobState, "retention") or JobState(name="retention", done=0, error="")
        state.failures = 3
        session.add(state)
    eventually(lambda: series(read(server), "job_failures", job="retention") == 3)
