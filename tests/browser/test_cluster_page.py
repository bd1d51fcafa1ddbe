"""Operators watch workers, drain and undrain them, and run background jobs."""

import json

import httpx
import pytest
from client_pages import call
from page_server import PageServer
from playwright.sync_api import expect

CLUSTER = "/console/cluster"


@pytest.fixture(scope="module")
def app(server):
    return server.new_app(name="cluster")


def workers_of_calls(server, app, calls=4):
    """Return the workers that some calls were sent to."""
    answers = [
        call(server, app["api_key"], "carl", f"call {number} " * 40) for number in range(calls)
    ]
    return {answer.headers["x-fairserve-worker"] for answer in answers}


def forget(server, what):
    key = {"Authorization": f"Bearer {server.admin_key}"}
    answer = httpx.delete(f"{server.url}/admin/cluster/{what}", headers=key, timeout=60)
    assert answer.status_code == 204, answer.text


def row(visit, worker):
    return visit.page.locator(f"#worker-{worker}")


def drain(visit, worker):
    visit.page.get_by_role("button", name=f"Drain {worker}", exact=True).click()
    dialog = visit.page.get_by_role("dialog", name=f"Drain {worker}?")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    dialog.get_by_role("button", name="Drain").click()


def ready(visit):
    visit.page.locator(".live.on").wait_for()


def test_a_worker_is_drained_and_serves_again(operator, server, app):
    assert operator.open(CLUSTER) == 200
    ready(operator)
    for worker in ("w0", "w1"):
        row(operator, worker).get_by_text("serving").wait_for()
    drain(operator, "w0")
    operator.page.wait_for_url("**?done=draining")
    assert "gets no new ones" in operator.page.get_by_role("status").first.inner_text()
    row(operator, "w0").get_by_text("drained", exact=True).wait_for()
    assert f"drained by {server.admin_key[:4]}" in row(operator, "w0").inner_text()
    assert workers_of_calls(server, app) == {"w1"}
    operator.page.get_by_role("button", name="Undrain w0").click()
    operator.page.wait_for_url("**?done=undrained")
    row(operator, "w0").get_by_text("serving").wait_for()
    drain(operator, "w1")
    operator.page.wait_for_url("**?done=draining")
    row(operator, "w1").get_by_text("drained", exact=True).wait_for()
    assert workers_of_calls(server, app) == {"w0"}
    assert "No other worker serves" in operator.page.locator("#drain-w0").text_content()
    operator.page.get_by_role("button", name="Undrain w1").click()
    row(operator, "w1").get_by_text("serving").wait_for()
    changes = server.call(server.admin_key, "GET", "/admin/audit?limit=4")["items"]
    done = [(change["action"], change["target"]) for change in changes]
    assert done == [
        ("worker.undrain", "w1"),
        ("worker.drain", "w1"),
        ("worker.undrain", "w0"),
        ("worker.drain", "w0"),
    ]


def test_changes_of_others_are_shown_without_a_reload(operator, server):
    operator.open(CLUSTER)
    ready(operator)
    server.call(server.admin_key, "POST", "/admin/cluster/workers/w1/drain")
    row(operator, "w1").get_by_text("drained", exact=True).wait_for()
    alias = {"target": {"fairserve-tiny-random": 1}}
    server.call(server.admin_key, "PUT", "/admin/cluster/aliases/small%20<b>", alias)
    operator.page.get_by_role("rowheader", name="small <b>", exact=True).wait_for()
    server.call(server.admin_key, "POST", "/admin/cluster/workers/w1/undrain")
    row(operator, "w1").get_by_text("serving").wait_for()
    url = "http://127.0.0.1:9"
    server.call(server.admin_key, "POST", "/admin/cluster/workers", {"id": "away", "url": url})
    row(operator, "away").get_by_text("joining").wait_for()
    forget(server, "workers/away?force=true")
    row(operator, "away").wait_for(state="detached")
    forget(server, "aliases/small%20<b>")
    operator.page.get_by_role("rowheader", name="small <b>", exact=True).wait_for(state="detached")


def test_a_lost_worker_has_the_state_that_the_cluster_has(browser, tmp_path):
    with PageServer(tmp_path) as server, browser.visit(server.url) as visit:
        visit.sign_in(server.admin_key).open(CLUSTER)
        row(visit, "w0").get_by_text("serving").wait_for()
        server.workers[0].close()
        row(visit, "w0").get_by_text("open circuit").wait_for()
        assert "joining" not in row(visit, "w0").inner_text()
        (lost, _) = server.call(server.admin_key, "GET", "/admin/cluster")["workers"]
        assert lost["state"] == "open circuit"


def test_charts_show_the_workers(operator, server, app):
    operator.open(CLUSTER)
    ready(operator)
    assert workers_of_calls(server, app) <= {"w0", "w1"}
    server.sample()
    hit_rates = "[data-chart=hits][aria-label*=w0][aria-label*=w1][aria-label*='33 %']"
    operator.page.locator(hit_rates).wait_for()
    data = json.loads(operator.page.locator("#chart-data").inner_text())
    assert set(data) == {"kv", "calls", "hits"}
    assert operator.page.locator("canvas").count() == 3


def test_a_job_is_run(operator, server):
    operator.open(CLUSTER)
    before = server.call(server.admin_key, "GET", "/admin/jobs")["items"]
    assert [job["name"] for job in before] == [
        text.split("\n")[0] for text in operator.page.locator("tr[id^=job-] th").all_inner_texts()
    ]
    operator.page.get_by_role("button", name="Run retention now").click()
    operator.page.wait_for_url("**?done=job")
    assert "Job requested; it runs soon." in operator.text()
    (change,) = server.call(server.admin_key, "GET", "/admin/audit?action=job.run")["items"]
    assert change["target"] == "retention"


def test_missing_workers_are_not_found(operator, server):
    operator.open(CLUSTER)
    csrf = operator.page.locator("input[name=csrf]").first.get_attribute("value")
    for path in ("workers/nobody/drain", "workers/nobody/undrain", "jobs/nothing/run"):
        answer = operator.context.request.post(f"{server.url}{CLUSTER}/{path}", form={"csrf": csrf})
        assert answer.status == 404, path
        answer = operator.context.request.post(f"{server.url}{CLUSTER}/{path}", form={})
        assert answer.status == 403, path
    operator.open(f"{CLUSTER}?worker=w1")
    assert operator.page.locator("tr[id^=worker-]").count() == 1
    operator.open(f"{CLUSTER}?worker=<b>")
    assert "No workers match." in operator.text()
    assert operator.page.get_by_label("Worker, model or alias").input_value() == "<b>"


def test_tenants_have_no_cluster(browser, server, app):
    with browser.visit(server.url) as visit:
        visit.sign_in(app["tenant_key"]).open("/console/overview")
        csrf = visit.page.locator("input[name=csrf]").first.get_attribute("value")
        for path in (CLUSTER, f"{CLUSTER}/stream"):
            assert visit.open(path) == 404
        for path in ("workers/w0/drain", "workers/w0/undrain", "jobs/retention/run"):
            answer = visit.context.request.post(
                f"{server.url}{CLUSTER}/{path}", form={"csrf": csrf}
            )
            assert answer.status == 404
    states = [
        each["state"]
        for each in server.call(server.admin_key, "GET", "/admin/cluster/workers")["items"]
    ]
    assert states == ["serving", "serving"]
