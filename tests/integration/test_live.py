"""Test the live views for operators over HTTP: arrays by time, clients, runs of all tenants."""

import pytest
from processes import eventually
from sqlalchemy import select
from whole_server import WholeServer

from fairserve.platform.db.ledger import LedgerCall

NODE = {"id": "one", "messages": [{"role": "user", "content": "hold"}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with WholeServer(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def worlds(server):
    """Return two tenants with an ended run; one also has an active run and a running program."""
    (one, app), (other, foreign) = (
        server.new_tenant_and_app("one"),
        server.new_tenant_and_app("other"),
    )
    named = {"X-Interaction-Id": "ended/run", "X-Interaction-Final": "true"}
    server.chat(app["api_key"], "say hello", user="anna", headers=named)
    server.chat(app["api_key"], "say hello", user="bert", headers={"X-Interaction-Id": "live"})
    server.chat(foreign["api_key"], "say hello", user="carl", headers=named)
    body = {"id": "program", "user": "anna", "model": "scripted", "nodes": [NODE]}
    server.call(app["api_key"], "POST", "/v1/interactions", body)
    eventually(lambda: any("hold" in str(body) for body in server.worker.bodies), "it does not run")
    assert server.platform.ledger.flush(10)
    return one, app, other, foreign


def runs(server, **query):
    found = server.call(server.admin_key, "GET", "/admin/interactions", **query)["items"]
    return [(run["id"], run["state"]) for run in found]


def test_runs_of_all_tenants_are_listed(server, worlds):
    one, app, other, _ = worlds
    live = [("program", "under_way"), ("live", "under_way")]
    ended = ("ended/run", "complete")
    assert runs(server) == [*live, ended, ended]
    assert runs(server, limit=3) == [*live, ended]
    assert runs(server, offset=1) == [ended]
    assert runs(server, state="live") == live
    assert runs(server, state="ended") == runs(server, state="complete") == [ended, ended]
    assert runs(server, state="aborted") == []
    assert runs(server, tenant=one["id"]) == [*live, ended]
    assert runs(server, tenant=other["id"]) == runs(server, user="carl") == [ended]
    assert runs(server, app=app["id"], user="anna") == [live[0], ended]
    (found,) = server.call(server.admin_key, "GET", "/admin/interactions", user="bert")["items"]
    assert (found["tenant"], found["app"]) == (one["id"], app["id"])
    wrong = server.request("GET", "/admin/interactions", server.admin_key, params={"state": "x"})
    assert wrong.status_code == 400


def test_a_tenant_key_reads_the_runs_of_its_apps(server, worlds):
    one, app, other, foreign = worlds
    key, path = one["api_key"], "/v1/interactions"
    mine = server.call(app["api_key"], "GET", path)["items"]
    assert [run["id"] for run in mine] == ["program", "live", "ended/run"]
    assert {run["app"] for run in mine} == {app["id"]}
    for query in ({}, {"app": app["id"]}, {"tenant": one["id"]}):
        assert server.call(key, "GET", path, **query)["items"] == mine
    (ended,) = server.call(key, "GET", path, app=app["id"], state="ended")["items"]
    (theirs,) = server.call(other["api_key"], "GET", path)["items"]
    assert (ended["app"], theirs["app"]) == (app["id"], foreign["id"])
    for name, asked in ((key, foreign), (app["api_key"], foreign), (other["api_key"], app)):
        answer = server.request("GET", path, name, params={"app": asked["id"]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "app")


def test_a_tenant_key_reads_one_run_of_a_named_app(server, worlds):
    one, app, other, foreign = worlds
    for more in ("", "/graph", "/events"):
        path = f"/v1/interactions/ended/run{more}"
        expected = server.request("GET", path, app["api_key"])
        answer = server.request("GET", path, one["api_key"], params={"app": app["id"]})
        assert (answer.status_code, answer.content) == (200, expected.content)
        nameless = server.request("GET", path, one["api_key"])
        assert (nameless.status_code, nameless.json()["error"]["param"]) == (400, "app")
        answer = server.request("GET", path, one["api_key"], params={"app": foreign["id"]})
        assert answer.status_code == 404
        answer = server.request("GET", path, other["api_key"], params={"app": app["id"]})
        assert answer.status_code == 404
    for method, more in (("DELETE", ""), ("POST", "/close")):
        path = f"/v1/interactions/live{more}"
        answer = server.request(method, path, one["api_key"], params={"app": app["id"]})
        assert answer.status_code == 403, "reading is all that a tenant key may do"


def test_clients_are_listed_with_their_usage(server, worlds):
    one, app, _, _ = worlds
    page = server.call(server.admin_key, "GET", "/admin/clients", sort="name", tenant=one["id"])
    assert [item["user"] for item in page["items"]] == ["anna", "bert"]
    anna, bert = page["items"]
    assert (page["total"], anna["running_calls"], bert["running_calls"]) == (2, 1, 0)
    assert server.platform.ledger.flush(10)
    with server.platform.sessions() as session:
        row = session.scalars(select(LedgerCall).where(LedgerCall.user_id == "bert")).one()
        assert bert["service_30m"] == row.service > 0
    by_name = server.call(server.admin_key, "GET", "/admin/clients", query="OTHER")["items"]
    assert [item["user"] for item in by_name] == ["carl"]
    named = {"query": "other", "tenant": one["id"]}
    assert server.call(server.admin_key, "GET", "/admin/clients", **named)["total"] == 0
    everybody = server.call(server.admin_key, "GET", "/admin/clients")
    assert everybody["total"] == 3
    shares = [item["service_share"] for item in everybody["items"]]
    assert sum(shares) == pytest.approx(1.0)
    path = f"/admin/clients/{one['id']}/{app['id']}"
    found = server.call(server.admin_key, "GET", f"{path}/anna")
    assert [level["path"] for level in found["levels"]] == [[one["id"]], [one["id"], "anna"]]
    assert [call["interaction"] for call in found["calls"]] == ["program"]
    assert found["weights"] == {"tenant": 1.0, "app": 1.0, "user": 1.0}
    answer = server.request("GET", f"{path}/nobody", server.admin_key)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "client_not_found")


def test_the_live_arrays_show_recent_traffic(server, worlds):
    one, _, other, _ = worlds

    def sampled():
        found = server.call(server.admin_key, "GET", "/admin/live")
        return found if sum(found["activity"]["accepted"]) == 4 else None

    found = eventually(sampled, "no sample has the calls")
    entries = len(found["at"])
    assert {len(found["activity"][name]) for name in ("service", "queue_p50_s", "jain_index")} == {
        entries
    }
    assert {client["user"] for client in found["clients"]} >= {"bert", "carl"}
    (worker,) = found["cluster"]["workers"].values()
    assert worker["state"] == "ready"
    assert worker["kv_capacity_tokens"][-1] > 0
    own = server.call(server.admin_key, "GET", "/admin/live", tenant=other["id"], clients=1)
    assert own["cluster"] is None
    assert [client["user"] for client in own["clients"]] == ["carl"]
    assert sum(own["activity"]["accepted"]) == 1
    assert one["id"] not in str(own)
    assert len(server.call(server.admin_key, "GET", "/admin/live", buckets=1)["at"]) == 1


def test_a_run_of_any_tenant_is_cancelled_and_logged(server, worlds):
    one, app, _, _ = worlds
    for run in ("live", "program"):
        path = f"/admin/interactions/{app['id']}/{run}"
        assert server.call(server.admin_key, "DELETE", path)["cancelled"]
        row = server.call(server.admin_key, "GET", "/admin/audit", action="interaction.cancel")
        assert row["items"][0]["target"] == f"{app['id']}/{run}"
        assert row["items"][0]["tenant"] == one["id"]
        found = server.call(app["api_key"], "GET", f"/v1/interactions/{run}")
        assert found["state"] == "cancelled"
        again = server.request("DELETE", path, server.admin_key)
        assert again.status_code in (404, 409), again.text
    assert found["program"]["reason"] == "cancelled by an operator"
    missing = server.request("DELETE", f"/admin/interactions/{app['id']}/nothing", server.admin_key)
    assert missing.status_code == 404
    ended = server.request("DELETE", f"/admin/interactions/{app['id']}/ended/run", server.admin_key)
    assert ended.status_code in (404, 409)
    log = server.call(server.admin_key, "GET", "/admin/audit", action="interaction.cancel")
    assert log["total"] == 2, "what could not be cancelled is not in the log"
    assert server.platform.ledger.flush(10)
    assert sorted(runs(server, state="cancelled")) == [
        ("live", "cancelled"),
        ("program", "cancelled"),
    ]
