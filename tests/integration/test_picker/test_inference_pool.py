"""Members of an InferencePool, discovered at a stub of the Kubernetes API."""

from urllib.parse import urlsplit

import pytest
from processes import eventually
from scripted_gateway import PickerServer, chat, endpoint_of, sse
from stub_kubernetes import StubKubernetes

from fairserve.platform.picker import inference_pool, list_watch

WORKERS = "/admin/cluster/workers"


@pytest.fixture
def kubernetes(tmp_path, monkeypatch):
    stub = StubKubernetes(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(stub.kubeconfig))
    monkeypatch.setattr(inference_pool, "FIRST_PAUSE_S", 0.05)
    yield stub
    stub.close()


def port_of(worker):
    return urlsplit(worker.url).port


@pytest.fixture
def start(kubernetes, workers, tmp_path):
    """Return a function that starts a picker of the pool, whose ports are those of both workers."""
    started = []

    def start(*flags, ports=None):
        kubernetes.put_pool(ports=ports or tuple(map(port_of, workers)))
        named = ("--pool-name", f"{kubernetes.namespace}/pool")
        started.append(PickerServer(tmp_path / "data", flags=(*named, *flags)))
        return started[-1]

    yield start
    for picker in started:
        picker.close()


def states(picker):
    items = picker.admin("GET", WORKERS).json()["items"]
    return {each["id"]: (each["source"], each["state"]) for each in items}


def becomes(picker, expected):
    eventually(lambda: states(picker) == expected, lambda: f"{states(picker)} != {expected}")


def serving(*workers):
    return {endpoint_of(worker): ("pool", "serving") for worker in workers}


def ask(picker, gateway):
    exchange = gateway.exchange()
    picked = exchange.ask(chat("ok"), authorization=f"Bearer {picker.app_key}")
    return exchange, picked


def test_ready_pods_of_the_selector_are_the_workers(start, kubernetes, workers):
    kubernetes.put_pod("one", "127.0.0.1")
    kubernetes.put_pod("other", "127.0.0.2", app="something-else")
    kubernetes.put_pod("starting", "127.0.0.3", ready=False)
    kubernetes.put_pod("ending", "127.0.0.4", deleting=True)
    picker = start()
    becomes(picker, serving(*workers))
    with picker.gateway() as gateway:
        assert gateway.health("readiness") == "SERVING"
        exchange, picked = ask(picker, gateway)
        assert picked.endpoint in map(endpoint_of, workers)
        exchange.answer(sse("a"))
        exchange.end()
    path, query = kubernetes.requests[0]
    assert path.endswith("/namespaces/models/inferencepools")
    assert query["fieldSelector"] == "metadata.name=pool"


def test_pods_come_and_leave_while_calls_run(start, kubernetes, workers):
    kubernetes.put_pod("one", "127.0.0.1")
    picker = start()
    becomes(picker, serving(*workers))
    with picker.gateway() as gateway:
        exchange, picked = ask(picker, gateway)
        kubernetes.put_pod("one", "127.0.0.1", ready=False)
        becomes(picker, {picked.endpoint: ("pool", "leaving")})
        _, late = ask(picker, gateway)
        assert (late.status, late.error["code"]) == (503, "no_endpoint")
        exchange.answer(sse("a", "b"))
        exchange.end()
        becomes(picker, {})
        assert gateway.health("readiness") == "SERVING", "the members are known: there are none"
        kubernetes.put_pod("one", "127.0.0.1")
        becomes(picker, serving(*workers))
        kubernetes.delete("one")
        becomes(picker, {})
    assert picker.row()["outcome"] == "completed"


def test_a_pool_with_another_selector_has_other_members(start, kubernetes, workers):
    kubernetes.put_pod("one", "127.0.0.1")
    kubernetes.put_pod("next", "127.0.0.1", app="next")
    picker = start(ports=(port_of(workers[0]),))
    becomes(picker, serving(workers[0]))
    kubernetes.put_pool(ports=(port_of(workers[1]),), app="next")
    becomes(picker, serving(workers[1]))
    kubernetes.delete("one")
    kubernetes.put_pod("more", "127.0.0.1", app="next")
    becomes(picker, serving(workers[1]))


def test_a_pool_that_does_not_exist_is_not_ready(start, kubernetes, workers):
    kubernetes.put_pod("one", "127.0.0.1")
    picker = start()
    becomes(picker, serving(*workers))
    with picker.gateway() as gateway:
        kubernetes.delete("pool")
        eventually(lambda: gateway.health("readiness") == "NOT_SERVING")
        becomes(picker, {})
        assert gateway.health("liveness") == "SERVING"
        kubernetes.put_pool(ports=tuple(map(port_of, workers)))
        becomes(picker, serving(*workers))
        assert gateway.health("readiness") == "SERVING"


def test_members_stay_while_the_api_is_down(start, kubernetes, workers):
    kubernetes.put_pod("one", "127.0.0.1")
    picker = start()
    becomes(picker, serving(*workers))
    pool = picker.picker._pool
    kubernetes.set_down(True)
    eventually(lambda: "500" in pool.problem, lambda: pool.problem)
    assert states(picker) == serving(*workers)
    kubernetes._change(lambda: kubernetes.pods.clear())
    kubernetes.set_down(False)
    becomes(picker, {})
    assert pool.problem == ""


def test_a_version_that_is_gone_is_read_again(start, kubernetes, workers, caplog):
    """A change was missed, and its version is gone: the list has the truth. It is no failure."""
    kubernetes.put_pod("one", "127.0.0.1")
    kubernetes.put_pod("two", "127.0.0.2")
    picker = start(ports=(port_of(workers[0]),))
    eventually(lambda: len(states(picker)) == 2)
    lists = sum("watch" not in query for _, query in kubernetes.requests)
    kubernetes.lose("two")

    def forget():
        kubernetes.version += 1
        kubernetes.oldest = kubernetes.version
        kubernetes._broken += 1

    kubernetes._change(forget)
    becomes(picker, serving(workers[0]))
    assert sum("watch" not in query for _, query in kubernetes.requests) > lists
    assert "cannot be read" not in caplog.text


def test_a_watch_that_ends_continues_from_its_version(start, kubernetes, workers):
    kubernetes.put_pod("one", "127.0.0.1")
    picker = start(ports=(port_of(workers[0]),))
    becomes(picker, serving(workers[0]))
    lists = [query for _, query in kubernetes.requests if "watch" not in query]
    for _ in range(3):
        kubernetes.end_watches()
    kubernetes.delete("one")
    becomes(picker, {})
    assert [query for _, query in kubernetes.requests if "watch" not in query] == lists


def test_the_whole_list_is_read_again_after_a_while(start, kubernetes, workers, monkeypatch):
    monkeypatch.setattr(list_watch, "RESYNC_S", 0.2)
    kubernetes.put_pod("one", "127.0.0.1")
    picker = start(ports=(port_of(workers[0]),))
    becomes(picker, serving(workers[0]))
    kubernetes.lose("one")

    def noticed():
        kubernetes.end_watches()  # as the API does after a minute
        return states(picker) == {}

    eventually(noticed)


def test_the_settings_of_the_pool_apply_to_its_workers(start, kubernetes, workers, monkeypatch):
    monkeypatch.setenv("POOL_TOKEN", "sk-pool")
    kubernetes.put_pod("one", "127.0.0.1")
    more = ("--pool-worker-kind", "openai", "--pool-worker-key-env", "POOL_TOKEN")
    picker = start(*more, "--pool-kv-ports", "5557", ports=(port_of(workers[0]),))
    becomes(picker, serving(workers[0]))
    (worker,) = picker.admin("GET", WORKERS).json()["items"]
    assert (worker["kind"], worker["api_key_env"]) == ("openai", "POOL_TOKEN")
    assert worker["kv_events"] == "tcp://127.0.0.1:5557"


def test_a_member_can_be_drained_by_its_id(start, kubernetes, workers):
    kubernetes.put_pod("one", "127.0.0.1")
    picker = start()
    becomes(picker, serving(*workers))
    name = endpoint_of(workers[0])
    answer = picker.admin("POST", f"{WORKERS}/{name}/drain")
    assert answer.status_code == 200, answer.text
    with picker.gateway() as gateway:
        for _ in range(3):
            exchange, picked = ask(picker, gateway)
            assert picked.endpoint == endpoint_of(workers[1])
            exchange.answer(sse("a"))
            exchange.end()
    picker.admin("POST", f"{WORKERS}/{name}/undrain")
    becomes(picker, serving(*workers))
