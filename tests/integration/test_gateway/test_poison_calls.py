"""Calls that make workers fail neither take workers from other tenants nor hide the cause."""

import pytest
from processes import eventually
from scripted_worker import ScriptedWorker

PATH = "/v1/chat/completions"
SECRETS = ("10.0.0.7", "8000", "vllm-0", "127.0.0.1", "sk-upstream", "/srv/vllm", "http")


@pytest.fixture(scope="module")
def gateway(start_server, scripted):
    return start_server("--worker-urls", ",".join(worker.url for worker in scripted))


@pytest.fixture(scope="module")
def alone(start_server):
    """Yield a server with one worker, which its attribute ``worker`` holds."""
    worker = ScriptedWorker()
    server = start_server("--worker-urls", worker.url)
    server.worker = worker
    yield server
    worker.close()


def body(text):
    return {"model": "scripted", "messages": [{"role": "user", "content": text}], "max_tokens": 9}


def call(gateway, text, key=None, run=None):
    headers = {"X-Interaction-Id": run} if run else {}
    return gateway.post(PATH, body(text), key, headers=headers)


def new_tenant(gateway, name):
    """Return the key of an app of a new tenant."""
    tenant = gateway.admin("POST", "/admin/tenants", json={"name": name}).json()
    return gateway.new_key(name, tenant_key=tenant["api_key"])


def attempts(workers, text):
    return [sum(text in str(body["messages"]) for body in worker.bodies) for worker in workers]


def circuits(gateway):
    return [worker["circuit"] for worker in gateway.cluster()["workers"]]


def test_failing_calls_of_one_tenant_open_no_circuit(gateway, scripted):
    other = new_tenant(gateway, "other")
    for number in range(7):
        answer = call(gateway, f"poison {number} alone")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (502, "upstream_error")
        assert "CUDA error: device-side assert" in error["message"]
        assert not [secret for secret in SECRETS if secret in error["message"]]
        assert answer.headers["x-should-retry"] == "false"
        assert attempts(scripted, f"poison {number} alone") == [1, 1]
    assert [(each["state"], each["opened"]) for each in circuits(gateway)] == [("closed", 0)] * 2
    assert call(gateway, "ok", other).status_code == 200


def test_the_row_of_a_failed_call_has_no_worker_address(gateway):
    assert call(gateway, "poison row", run="run-poison").status_code == 502
    row = gateway.row(interaction_id="run-poison")
    assert (row["outcome"], row["output_tokens"]) == ("failed", 0)
    assert "CUDA error" in row["error"]
    assert not [secret for secret in SECRETS if secret in row["error"]]


def test_a_single_worker_is_tried_twice(alone):
    assert call(alone, "poison once more").status_code == 502
    assert attempts([alone.worker], "once more") == [2]


@pytest.mark.parametrize("word", ["denied", "account"])
def test_worker_account_errors_are_not_passed_on(alone, word):
    answer = call(alone, word)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "unavailable")
    assert error["message"] == "no worker could begin with the call"


def test_a_pause_caused_by_one_tenant_does_not_affect_others(plain):
    with plain.asking(PATH, body("later too large")):
        eventually(lambda: queue(plain)["paused_s"] > 0)
    other = new_tenant(plain, "other")
    assert call(plain, "ok", other).status_code == 200
    assert queue(plain)["paused_s"] > 0, "it was served during the pause"


def queue(gateway):
    return gateway.cluster()["workers"][0]["local_queue"]


def test_failures_of_several_tenants_open_the_circuit(alone):
    assert call(alone, "ok").status_code == 200
    second = new_tenant(alone, "second")
    before = circuits(alone)[0]["opened"]
    for key in (None, None, second):
        call(alone, "poison together", key)
    assert circuits(alone)[0]["opened"] == before + 1
    assert call(alone, "ok").status_code == 200, "it is served after the pause"


def test_broken_connections_of_one_tenant_open_the_circuit(alone):
    assert call(alone, "ok").status_code == 200
    before = circuits(alone)[0]["opened"]
    for number in range(3):
        assert call(alone, f"die {number}").status_code == 503
    assert circuits(alone)[0]["opened"] > before
    assert call(alone, "ok", new_tenant(alone, "third")).status_code == 200, "the pause is short"
