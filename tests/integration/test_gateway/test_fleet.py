"""Workers join and leave while calls run: by fleet file, by the API, and over a restart."""

import concurrent.futures
import contextlib
import json
import os
import time

import pytest
from processes import eventually
from scripted_worker import ScriptedWorker
from sse import data_of

from fairserve.platform.server import cli

PATH = "/v1/chat/completions"
WORKERS = "/admin/cluster/workers"
ALIASES = "/admin/cluster/aliases"


@pytest.fixture(scope="module")
def workers():
    """Yield three workers that serve one model."""
    found = [ScriptedWorker(kv_blocks=256) for _ in range(3)]
    yield found
    for worker in found:
        worker.close()


class FleetFile:
    """A fleet file that is replaced atomically, as editors do."""

    def __init__(self, path):
        self.path = path

    def write(self, content):
        other = self.path.with_suffix(".new")
        other.write_text(content if isinstance(content, str) else json.dumps(content))
        os.replace(other, self.path)

    def workers(self, *workers, **more):
        """Write the given pairs ``(id, scripted worker)``."""
        self.write({"workers": [{"id": i, "url": w.url} for i, w in workers], **more})


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return FleetFile(tmp_path_factory.mktemp("fleet") / "fleet.json")


@pytest.fixture(scope="module")
def server(start_server, file, workers):
    """Yield a server whose fleet file names the first worker; every test restores that."""
    file.workers(("f0", workers[0]))
    return start_server("--fleet-file", str(file.path))


def body(text="ok", model="scripted", **more):
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def call(server, text="ok", model="scripted", run=None, **more):
    headers = {"X-Interaction-Id": run} if run else {}
    return server.post(PATH, body(text, model, max_tokens=20, **more), headers=headers)


def listed(server):
    answer = server.admin("GET", WORKERS)
    assert answer.status_code == 200, answer.text
    return {worker["id"]: worker for worker in answer.json()["items"]}


def states(server):
    return {name: (worker["source"], worker["state"]) for name, worker in listed(server).items()}


def becomes(server, expected):
    eventually(lambda: states(server) == expected, lambda: f"{states(server)} != {expected}")


def join(server, worker_id, worker, **more):
    answer = server.admin("POST", WORKERS, json={"id": worker_id, "url": worker.url, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


def drain(server, worker_id, what="drain"):
    answer = server.admin("POST", f"{WORKERS}/{worker_id}/{what}")
    assert answer.status_code == 200, answer.text
    return answer.json()


@contextlib.contextmanager
def traffic(server, clients=4):
    """Run clients that make one call after the other; yield the answers so far."""
    answers, stop = [], []

    def run(client):
        number = 0
        while not stop:
            number += 1
            answers.append(call(server, run=f"run-traffic-{client}-{number}-{time.time_ns()}"))

    with concurrent.futures.ThreadPoolExecutor(clients) as threads:
        running = [threads.submit(run, client) for client in range(clients)]
        try:
            yield answers
        finally:
            stop.append(True)
    for each in running:
        each.result()


def more(answers, count=12):
    """Wait until the given number of further calls is answered."""
    before = len(answers)
    eventually(lambda: len(answers) >= before + count)
    return {answer.headers.get("x-fairserve-worker") for answer in answers[before:]}


def let_end(answers, clients=4):
    """Wait until each client has another answer: the calls that were in progress have ended."""
    before = len(answers)

    def answered():
        runs = (answer.request.headers["x-interaction-id"] for answer in answers[before:])
        return len({run.split("-")[2] for run in runs}) == clients

    eventually(answered)


def test_the_worker_of_the_file_serves(server):
    assert states(server) == {"f0": ("file", "serving")}
    answer = call(server)
    assert answer.status_code == 200
    assert answer.headers["x-fairserve-worker"] == "f0"
    assert answer.headers["x-fairserve-model"] == "scripted"
    ready = server.http.get("/health/readiness").json()
    assert ready == {"status": "ready", "workers": 1, "models": 1}
    cluster = server.cluster()
    (model,) = cluster["models"]
    assert (model["model"], model["ready"], model["workers"], model["workers_up"]) == (
        "scripted",
        True,
        1,
        1,
    )
    assert (model["exact_tokens"], model["tokenizer"]) == (False, "estimate"), "there is none"
    assert cluster["fleet_file"]["problem"] == ""
    assert cluster["processes"] == [], "no embedded workers beside the file's"


def test_the_list_begins_with_the_worker_whose_drain_costs_least(server, workers, file):
    """A run in progress makes its worker cost its prompt, until it ends."""
    file.workers(("f0", workers[0]), ("f1", workers[1]))
    becomes(server, {"f0": ("file", "serving"), "f1": ("file", "serving")})

    def costs(**more):
        asked = {"model": "scripted", "sort": "drain_cost", **more}
        items = server.admin("GET", WORKERS, params=asked).json()["items"]
        return {worker["id"]: worker["drain_cost_tokens"] for worker in items}

    first = call(server, "word " * 1000, run="run-worth")
    dear = first.headers["x-fairserve-worker"]
    (cheap,) = {"f0", "f1"} - {dear}
    found = costs()
    assert list(found) == [cheap, dear]
    assert found[cheap] < 500 < found[dear]
    assert list(costs(limit=1)) == [cheap]
    assert costs(model="another") == {}
    server.request("POST", "/v1/interactions/run-worth/close", server.app_key, json={})
    assert costs()[dear] < 500, "no further call needs it"
    file.workers(("f0", workers[0]))
    becomes(server, {"f0": ("file", "serving")})


def test_join_drain_and_remove_lose_no_call(server, workers):
    with traffic(server) as answers:
        more(answers)
        assert join(server, "api-1", workers[1])["state"] == "joining"
        becomes(server, {"f0": ("file", "serving"), "api-1": ("api", "serving")})
        eventually(lambda: "api-1" in more(answers), "the new worker gets no call")
        drained = server.admin("POST", f"{WORKERS}/api-1/drain")
        assert drained.status_code == 200, drained.text
        becomes(server, {"f0": ("file", "serving"), "api-1": ("api", "drained")})
        let_end(answers)
        assert more(answers) == {"f0"}
        assert server.admin("DELETE", f"{WORKERS}/api-1").status_code == 204
        becomes(server, {"f0": ("file", "serving")})
        join(server, "api-2", workers[1])
        eventually(lambda: "api-2" in more(answers))
        assert server.admin("DELETE", f"{WORKERS}/api-2").status_code == 204
        becomes(server, {"f0": ("file", "serving")})
        more(answers)
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["choices"][0]["message"]["content"] for answer in answers} == {
        "one two three"
    }


def test_a_running_call_ends_on_its_draining_worker(server, workers, file):
    join(server, "api-1", workers[1])
    becomes(server, {"f0": ("file", "serving"), "api-1": ("api", "serving")})
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        held = [threads.submit(call, server, f"hold {n}") for n in range(2)]

        def calls():
            return {name: worker["calls"] for name, worker in listed(server).items()}

        eventually(lambda: sum(calls().values()) == 2)
        busy = calls()["api-1"]
        server.admin("DELETE", f"{WORKERS}/api-1")
        if busy:
            assert states(server)["api-1"] == ("api", "leaving")
            assert call(server).headers["x-fairserve-worker"] == "f0"
            assert states(server)["api-1"] == ("api", "leaving"), "its call runs"
        for worker in workers:
            worker.release()
        assert [each.result().status_code for each in held] == [200, 200]
    becomes(server, {"f0": ("file", "serving")})


def test_forced_removal_breaks_running_calls(server, workers, file):
    """The worker of the file is down, so that the call runs on the removed one."""
    join(server, "api-1", workers[1])
    becomes(server, {"f0": ("file", "serving"), "api-1": ("api", "serving")})
    file.workers()
    becomes(server, {"api-1": ("api", "serving")})
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        held = threads.submit(call, server, "hold", run="run-forced")
        eventually(lambda: listed(server)["api-1"]["calls"] == 1)
        answer = server.admin("DELETE", f"{WORKERS}/api-1", params={"force": "true"})
        assert answer.status_code == 204
        assert states(server) == {}
        file.workers(("f0", workers[0]))
        # It is retried on the other worker if nothing had reached its client, as after any loss.
        eventually(lambda: [w.release() for w in workers] and held.done())
    assert held.result().status_code in (200, 502, 503)
    becomes(server, {"f0": ("file", "serving")})


def test_changes_of_the_file_are_applied(server, workers, file):
    with traffic(server) as answers:
        file.workers(("f0", workers[0]), ("f1", workers[1]))
        becomes(server, {"f0": ("file", "serving"), "f1": ("file", "serving")})
        eventually(lambda: "f1" in more(answers))
        file.workers(("f1", workers[1]))
        becomes(server, {"f1": ("file", "serving")})
        let_end(answers)
        assert more(answers) == {"f1"}
        file.workers(("f1", workers[2]))  # it moves: the old one drains first
        eventually(lambda: listed(server)["f1"]["url"] == workers[2].url)
        becomes(server, {"f1": ("file", "serving")})
        seen = len(workers[2].bodies)
        eventually(lambda: len(workers[2].bodies) > seen + 5)
        file.workers(("f0", workers[0]))
        becomes(server, {"f0": ("file", "serving")})
        more(answers)
    assert [answer.text for answer in answers if answer.status_code != 200] == []


def test_a_broken_file_changes_nothing_and_is_shown(server, workers, file, caplog):
    file.write('{"workers": [{"id": "x", "url": "nowhere"}]}')

    def problem():
        return server.cluster()["fleet_file"]["problem"]

    assert "workers.0.url: a worker URL must be http" in eventually(problem)
    assert states(server) == {"f0": ("file", "serving")}
    assert call(server).status_code == 200
    assert "is invalid, the last valid one stays in force" in caplog.text
    file.workers(("f0", workers[0]))
    eventually(lambda: not problem())
    assert states(server) == {"f0": ("file", "serving")}


def test_each_source_keeps_its_own_workers(server, workers, file):
    join(server, "api-1", workers[1])
    file.workers(("f0", workers[0]), ("api-1", workers[2]))
    eventually(lambda: server.cluster()["fleet_file"]["problem"])
    assert "'api-1' exists already, from the admin API" in server.cluster()["fleet_file"]["problem"]
    answer = server.admin("DELETE", f"{WORKERS}/f0")
    assert (answer.status_code, "fleet file" in answer.text) == (409, True)
    assert server.admin("DELETE", f"{WORKERS}/api-1").status_code == 204
    eventually(lambda: listed(server).get("api-1", {}).get("source") == "file")
    file.workers(("f0", workers[0]))
    becomes(server, {"f0": ("file", "serving")})


def test_aliases_route_calls(server, file, workers):
    assert server.admin("PUT", f"{ALIASES}/gpt-4o", json={"target": "scripted"}).status_code == 200
    file.workers(("f0", workers[0]), aliases={"from/file": {"scripted": 3, "gone": 1}})
    eventually(lambda: len(server.admin("GET", ALIASES).json()["items"]) == 2)
    found = {item["name"]: item for item in server.admin("GET", ALIASES).json()["items"]}
    assert found["from/file"]["target"] == {"scripted": 3, "gone": 1}
    assert (found["from/file"]["source"], found["gpt-4o"]["source"]) == ("file", "api")
    assert found["from/file"]["serving"] == ["scripted"]
    client = server.openai()
    assert {model.id for model in client.models.list()} == {"scripted", "gpt-4o", "from/file"}
    assert client.models.retrieve("from/file").id == "from/file"
    for name in ("gpt-4o", "from/file"):
        run = f"run-alias-{name.replace('/', '-')}"
        answer = call(server, model=name, run=run)
        assert answer.json()["model"] == name, "as it was asked for"
        assert answer.headers["x-fairserve-model"] == "scripted"
        streamed = call(server, model=name, stream=True)
        assert json.loads(data_of(streamed.text)[0])["model"] == name
        row = server.row(interaction_id=run)
        assert (row["model"], row["served_model"]) == (name, "scripted")
    assert {each["model"] for each in workers[0].bodies} == {"scripted"}
    unknown = call(server, model="gpt-5")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["message"].endswith("allowed: scripted, from/file, gpt-4o")
    for name in ("scripted", "gpt-4o"):
        answer = server.admin("PUT", f"{ALIASES}/{name}", json={"target": "gpt-4o"})
        assert answer.status_code == 409
    assert server.admin("DELETE", f"{ALIASES}/gpt-4o").status_code == 204
    assert call(server, model="gpt-4o").status_code == 404
    file.workers(("f0", workers[0]))


def test_bad_bodies_name_the_field(server):
    for change, param in (
        ({"port": 1}, "port"),
        ({"url": "ftp://x"}, "url"),
        ({"id": "a b"}, "id"),
    ):
        answer = server.admin("POST", WORKERS, json={"id": "x", "url": "http://x"} | change)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_worker_that_serves_another_model_reports_why_it_does_not_join(server, workers):
    join(server, "api-1", workers[1], model="llama")
    eventually(lambda: listed(server)["api-1"]["problem"])
    worker = listed(server)["api-1"]
    assert "'llama'" in worker["problem"]
    assert "scripted" in worker["problem"], "what it serves instead"
    assert worker["state"] == "joining"
    answer = call(server, model="llama")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "starting")
    server.admin("DELETE", f"{WORKERS}/api-1")
    becomes(server, {"f0": ("file", "serving")})
    assert call(server, model="llama").status_code == 404


def test_a_restart_keeps_workers_added_by_the_api(start_server, workers):
    """Drained workers stay drained. No embedded worker starts beside them."""
    server = start_server("--worker-urls", workers[0].url)
    join(server, "kept", workers[1])
    join(server, "resting", workers[2])
    server.admin("PUT", f"{ALIASES}/chat", json={"target": "scripted"})
    everything = {"w0": ("settings", "serving"), "kept": ("api", "serving")}
    becomes(server, everything | {"resting": ("api", "serving")})
    for worker_id, what in (("kept", "drain"), ("kept", "undrain"), ("resting", "drain")):
        assert server.admin("POST", f"{WORKERS}/{worker_id}/{what}").status_code == 200
    becomes(server, everything | {"resting": ("api", "drained")})
    server.flags = ()
    server.stop()
    server.start()
    becomes(server, {"kept": ("api", "serving"), "resting": ("api", "drained")})
    assert call(server, model="chat").headers["x-fairserve-worker"] == "kept"
    assert server.cluster()["processes"] == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "it is not JSON"),
        ('{"workers": [{"id": "a"}]}', "workers.0.url: Field required"),
        (None, "No such file"),
    ],
)
def test_a_broken_file_at_the_start_is_an_error(tmp_path, capsys, content, problem):
    path = tmp_path / "fleet.json"
    if content is not None:
        path.write_text(content)
    flags = ["--data-dir", str(tmp_path / "data"), "--fleet-file", str(path), "--port", "0"]
    assert cli.main(["serve", *flags]) == 1
    err = capsys.readouterr().err
    assert f"the fleet file {path}: {problem}" in err
    assert err.count("\n") == 1
