"""``/admin/cluster/workers`` and ``/aliases`` over HTTP, on both databases."""

import pytest
from sqlalchemy import func, insert, select

from fairserve.engine.base import KvEndpoints
from fairserve.platform.cluster import repository, schemas
from fairserve.platform.cluster.fleet import FleetPart
from fairserve.platform.cluster.worker_spec import WorkerSpec
from fairserve.platform.completions.models import ServedModel
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.fleet import FleetAlias, FleetWorker
from fairserve.platform.db.operations import AuditEntry

WORKERS = "/admin/cluster/workers"
ALIASES = "/admin/cluster/aliases"
WHOLE = {
    "id": "a",
    "url": "http://A.example:8000/v1",
    "kind": "openai",
    "model": "llama",
    "tokenizer": "meta/llama",
    "kv_events": "tcp://a:5557",
    "kv_replay": "tcp://a:5558",
    "kv_tokens": 4096,
    "concurrency": 3,
    "api_key_env": "FAIRSERVE_WORKER_KEY_A",
}


def admin(management, method, path, body=None, **more):
    return management.call(management.admin, method, path, body, **more)


def stored(management):
    """What a restart would find."""
    with management.state.session_factory() as session:
        return repository.load_part(session)


def audit(management):
    with management.state.session_factory() as session:
        return list(session.scalars(select(AuditEntry).order_by(AuditEntry.at)))


def test_a_worker_joins_drains_and_is_removed(management):
    joined = admin(management, "POST", WORKERS, WHOLE, status=201)
    assert (joined["source"], joined["state"]) == ("api", "joining")
    assert joined["url"] == "http://a.example:8000"
    spec = WorkerSpec(
        "a",
        "http://a.example:8000",
        "openai",
        "llama",
        KvEndpoints("tcp://a:5557", "tcp://a:5558"),
        4096,
        3,
        "FAIRSERVE_WORKER_KEY_A",
    )
    assert stored(management) == FleetPart((spec,), {}, {"llama": "meta/llama"}, frozenset())
    assert management.fleet.parts["api"] == stored(management)
    drained = admin(management, "POST", f"{WORKERS}/a/drain")
    assert drained["state"] == "draining"
    assert management.fleet.parts["api"].drained == {"a"}
    admin(management, "POST", f"{WORKERS}/a/drain")  # again: nothing changes
    admin(management, "DELETE", f"{WORKERS}/a", status=204)
    assert stored(management) == FleetPart()
    entries = audit(management)
    assert [entry.action for entry in entries] == ["worker.join", "worker.drain", "worker.remove"]
    assert {entry.target for entry in entries} == {"a"}
    assert entries[0].before is None
    assert entries[0].after["url"] == "http://a.example:8000"
    assert (entries[1].before["drained"], entries[1].after["drained"]) == (False, True)
    assert entries[2].after is None
    assert entries[0].actor == management.admin[: len(entries[0].actor)]


def test_removal_by_force_is_told_to_the_fleet(management):
    for worker in ("a", "b"):
        body = {"id": worker, "url": f"http://{worker}"}
        admin(management, "POST", WORKERS, body, status=201)
    admin(management, "DELETE", f"{WORKERS}/a", status=204)
    admin(management, "DELETE", f"{WORKERS}/b", status=204, force="true")
    assert management.fleet.dropped == ["", "", "", "b"]


@pytest.mark.parametrize(
    "change",
    [
        {"id": "a/b"},
        {"id": ""},
        {"id": "x" * 65},
        {"url": "ftp://a"},
        {"url": "http://user:pw@a"},
        {"url": "file:///etc/passwd"},
        {"kind": "tgi"},
        {"concurrency": 0},
        {"kv_tokens": 1},
        {"kv_events": "http://a"},
        {"kv_events": None},
        {"model": None},
        {"model": " x"},
        {"api_key_env": "FAIRSERVE_SECRET_KEY"},
        {"api_key_env": "DATABASE_URL"},
        {"weight": 1},
    ],
)
def test_a_bad_worker_is_refused(management, change):
    admin(management, "POST", WORKERS, WHOLE | change, status=422)
    assert stored(management) == FleetPart()
    assert audit(management) == []


def test_other_sources_are_not_changed_here(management):
    management.fleet.parts = {
        "settings": FleetPart((WorkerSpec("w0", "http://w0"),)),
        "file": FleetPart((WorkerSpec("f", "http://f", model="m"),), {"chat": {"m": 1}}),
        "embedded": FleetPart((WorkerSpec("e", ""),)),
    }

    def refused(method, path, body=None, **query):
        return admin(management, method, path, body, status=409, **query)["error"]["message"]

    places = {
        "w0": "the setting worker_urls",
        "f": "the fleet file",
        "e": "the embedded workers",
    }
    for worker, place in places.items():
        for method, path in (
            ("POST", f"{WORKERS}/{worker}/drain"),
            ("DELETE", f"{WORKERS}/{worker}"),
        ):
            assert refused(method, path) == f"worker {worker!r} is one of {place}; change it there"
        body = {"id": worker, "url": "http://new"}
        assert refused("POST", WORKERS, body) == f"worker {worker!r} is one of {place}"
    assert "has the URL of worker 'f'" in refused("POST", WORKERS, {"id": "x", "url": "http://f"})
    body = {"id": "x", "url": "http://x", "model": "chat"}
    assert "the name of an alias" in refused("POST", WORKERS, body)
    assert "one of the fleet file" in refused("PUT", f"{ALIASES}/chat", {"target": "m"})
    assert "one of the fleet file; change it there" in refused("DELETE", f"{ALIASES}/chat")
    assert stored(management) == FleetPart()


def test_a_worker_joins_once(management):
    body = {"id": "a", "url": "http://a"}
    admin(management, "POST", WORKERS, body, status=201)
    admin(management, "POST", WORKERS, body, status=409)
    admin(management, "POST", WORKERS, body | {"id": "b"}, status=409)
    management.fleet.parts = {}  # the fleet has not taken it up: the table itself refuses
    admin(management, "POST", WORKERS, body, status=409)
    admin(management, "POST", WORKERS, body | {"id": "b"}, status=409)
    for method, path in (("POST", f"{WORKERS}/x/drain"), ("DELETE", f"{WORKERS}/x")):
        admin(management, method, path, status=404)


def test_aliases(management):
    put = admin(management, "PUT", f"{ALIASES}/gpt-4o", {"target": "llama"})
    assert put == {"name": "gpt-4o", "source": "api", "target": {"llama": 1}, "serving": []}
    split = {"target": {"chat-v1": 9, "chat-v2": 1.5}}
    admin(management, "PUT", f"{ALIASES}/org/chat", split)
    listed = admin(management, "GET", ALIASES)
    assert [(item["name"], item["target"]) for item in listed["items"]] == [
        ("gpt-4o", {"llama": 1}),
        ("org/chat", {"chat-v1": 9, "chat-v2": 1.5}),
    ]
    assert stored(management).aliases == {item["name"]: item["target"] for item in listed["items"]}
    admin(management, "PUT", f"{ALIASES}/org/chat", {"target": {"chat-v1": 1, "chat-v2": 1}})
    admin(management, "DELETE", f"{ALIASES}/org/chat", status=204)
    admin(management, "DELETE", f"{ALIASES}/org/chat", status=404)
    assert list(stored(management).aliases) == ["gpt-4o"]
    entries = audit(management)
    assert [entry.action for entry in entries] == ["alias.put"] * 3 + ["alias.remove"]
    assert entries[2].before == {"targets": {"chat-v1": 9, "chat-v2": 1.5}}
    assert entries[2].after == {"targets": {"chat-v1": 1, "chat-v2": 1}}


@pytest.mark.parametrize(
    "target",
    ["", {}, {"m": 0}, {"m": -1}, {"m": "x"}, ["m"], None, {f"m{n}": 1 for n in range(21)}],
)
def test_a_bad_target_is_refused(management, target):
    admin(management, "PUT", f"{ALIASES}/x", {"target": target}, status=422)
    assert stored(management) == FleetPart()


def test_aliases_are_one_level_and_hide_no_model(management):
    models = management.state.models
    models.serve(ServedModel(("llama",), "llama", 100, None))
    admin(management, "PUT", f"{ALIASES}/x", {"target": "m"})
    for name, target, problem in (
        ("y", "x", "leads to the alias 'x'; allowed: models"),
        ("m", "n", "is what another alias leads to"),
        ("self", "self", "leads to the alias 'self'"),
        ("llama", "m", "the name of a model that is served"),
    ):
        answer = admin(management, "PUT", f"{ALIASES}/{name}", {"target": target}, status=409)
        assert problem in answer["error"]["message"]


def test_there_is_a_bound(management, monkeypatch):
    monkeypatch.setattr("fairserve.platform.cluster.service.MAX_WORKERS", 2)
    monkeypatch.setattr("fairserve.platform.cluster.service.MAX_ALIASES", 2)
    assert (schemas.MAX_WORKERS, schemas.MAX_ALIASES) == (1000, 1000)
    blank = {"url": "x", "kind": "vllm", "concurrency": 1, "drained": False}
    rows = [
        blank | {"id": f"w{n}", "url": f"http://{n}", "created_at": utc_now()} for n in range(2)
    ]
    names = [{"name": f"a{n}", "targets": {"m": 1}, "updated_at": utc_now()} for n in range(2)]
    with management.state.session_factory.begin() as session:
        session.execute(insert(FleetWorker), rows)
        session.execute(insert(FleetAlias), names)
    body = {"id": "a", "url": "http://a"}
    answer = admin(management, "POST", WORKERS, body, status=409)
    assert answer["error"]["message"] == "2 workers have joined; remove one first"
    answer = admin(management, "PUT", f"{ALIASES}/more", {"target": "m"}, status=409)
    assert answer["error"]["message"] == "there are 2 aliases; remove one first"
    admin(management, "PUT", f"{ALIASES}/a1", {"target": "n"})
    with management.state.session_factory() as session:
        assert session.scalar(select(func.count(FleetWorker.id))) == 2


def test_only_admins(management):
    tenant = management.tenant("acme")
    for method, path in (
        ("GET", WORKERS),
        ("GET", f"{WORKERS}/a"),
        ("POST", WORKERS),
        ("POST", f"{WORKERS}/a/drain"),
        ("DELETE", f"{WORKERS}/a"),
        ("GET", ALIASES),
        ("PUT", f"{ALIASES}/x"),
        ("DELETE", f"{ALIASES}/x"),
    ):
        management.call(tenant["api_key"], method, path, WHOLE, status=403)
        management.call(None, method, path, WHOLE, status=401)
