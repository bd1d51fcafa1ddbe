"""``/admin/cluster/workers`` and ``/aliases`` over HTTP, with workers that do not run."""

from dataclasses import replace
from datetime import datetime

from databases import ON_BOTH
from processes import eventually
from sqlalchemy import func, insert, select

from fairserve.engine.wire.base import KvEndpoints
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.fleet import FleetAlias, FleetDrain, FleetWorker
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.fleet import repository
from fairserve.platform.fleet.fleet import FleetPart, StoredFleet, StoredValues
from fairserve.platform.fleet.models import Models, ServedModel
from fairserve.platform.fleet.worker_spec import WorkerSpec

WORKERS = "/admin/cluster/workers"
ALIASES = "/admin/cluster/aliases"
WHOLE = {
    "id": "a",
    "url": "http://LOCALHOST:9/v1",
    "kind": "openai",
    "model": "llama",
    "tokenizer": "meta/llama",
    "kv_events": "tcp://a:5557,tcp://b:5557",
    "kv_replay": "tcp://a:5558,tcp://b:5558",
    "kv_tokens": 4096,
    "concurrency": 3,
    "api_key_env": "FAIRSERVE_WORKER_KEY_A",
}


def admin(management, method, path, body=None, **more):
    return management.call(management.admin_key, method, path, body, **more)


def stored(management):
    """Return what a restart would load."""
    with management.state.session_factory() as session:
        return repository.load_part(session)


def drains(management):
    """Return the workers that are drained after a restart, each with the author of the drain."""
    with management.state.session_factory() as session:
        found = repository.load_stored(session).drains
    assert all(note.at is not None for note in found.values())
    return {worker_id: note.by for worker_id, note in found.items()}


def url(number):
    """Return a URL at which no server listens."""
    return f"http://127.0.0.1:{number}"


FILE = FleetPart((WorkerSpec("f", url(2), model="m"),), {"chat": {"m": 1}})


def other_sources(management):
    fleet = management.state.fleet.running
    for source, part in (
        ("settings", FleetPart((WorkerSpec("w0", url(1)),))),
        ("file", FILE),
        ("embedded", FleetPart((WorkerSpec("e", ""),))),
    ):
        management.on_loop(fleet.set_part, source, part)


def change_file(management, part):
    management.on_loop(management.state.fleet.running.set_part, "file", part)


def audit(management):
    with management.state.session_factory() as session:
        return list(session.scalars(select(AuditEntry).order_by(AuditEntry.at)))


def test_a_worker_joins_drains_and_is_removed(management):
    joined = admin(management, "POST", WORKERS, WHOLE, status=201)
    assert (joined["source"], joined["state"]) == ("api", "joining")
    assert joined["url"] == "http://localhost:9"
    assert (joined["kv_events"], joined["kv_replay"]) == (WHOLE["kv_events"], WHOLE["kv_replay"])
    spec = WorkerSpec(
        "a",
        "http://localhost:9",
        "openai",
        "llama",
        (KvEndpoints("tcp://a:5557", "tcp://a:5558"), KvEndpoints("tcp://b:5557", "tcp://b:5558")),
        4096,
        3,
        "FAIRSERVE_WORKER_KEY_A",
    )
    kept = {"a": StoredValues("meta/llama")}
    assert stored(management) == FleetPart((spec,), {}, {"llama": "meta/llama"}, stored=kept)
    fleet = management.state.fleet.running
    assert (fleet.desired.workers["a"].spec, fleet.present["a"].spec) == (spec, spec)
    listed = admin(management, "GET", WORKERS)["items"]
    assert [(item["id"], item["state"]) for item in listed] == [("a", "joining")]
    drained = admin(management, "POST", f"{WORKERS}/a/drain")
    assert drained["state"] == "draining"
    by = management.admin_key[:12]
    assert (drained["drained_by"], drained["url"]) == (by, "http://localhost:9")
    assert abs((utc_now() - datetime.fromisoformat(drained["drained_at"])).total_seconds()) < 60
    assert drains(management) == {"a": by}
    eventually(lambda: admin(management, "GET", f"{WORKERS}/a")["state"] == "drained")
    again = admin(management, "POST", f"{WORKERS}/a/drain")
    assert again == drained | {"state": "drained"}, "nothing changes"
    admin(management, "DELETE", f"{WORKERS}/a", status=204)
    assert (stored(management), drains(management)) == (FleetPart(), {})
    entries = audit(management)
    assert [entry.action for entry in entries] == ["worker.join", "worker.drain", "worker.remove"]
    assert {entry.target for entry in entries} == {"a"}
    assert entries[0].before is None
    assert entries[0].after["url"] == "http://localhost:9"
    assert (entries[1].before["drained"], entries[1].after["drained"]) == (False, True)
    assert entries[1].after == {"source": "api", "drained": True}
    assert entries[2].after is None
    assert entries[0].actor == management.admin_key[: len(entries[0].actor)]


def test_removal_by_force_reaches_the_fleet(management, monkeypatch):
    fleet = management.state.fleet.running
    reload, dropped = fleet.reload, []

    def spy(load, drop=""):
        dropped.append(drop)
        reload(load, drop)

    monkeypatch.setattr(fleet, "reload", spy)
    for number, worker in enumerate(("a", "b"), start=5):
        body = {"id": worker, "url": url(number)}
        admin(management, "POST", WORKERS, body, status=201)
    admin(management, "DELETE", f"{WORKERS}/a", status=204)
    admin(management, "DELETE", f"{WORKERS}/b", status=204, force="true")
    assert dropped == ["", "", "", "b"]
    assert "b" not in fleet.present


def test_a_worker_is_changed(management):
    whole = {name: value for name, value in WHOLE.items() if name != "id"}
    admin(management, "POST", WORKERS, WHOLE, status=201)
    admin(management, "POST", WORKERS, {"id": "b", "url": url(6)}, status=201)
    fleet = management.state.fleet.running
    there = fleet.present["a"]
    managed = admin(management, "PUT", f"{WORKERS}/a", whole | {"managed_by": "ops"})
    assert (managed["managed_by"], managed["tokenizer"]) == ("ops", "meta/llama")
    assert (managed["state"], fleet.present["a"]) == ("joining", there), "its values are the same"
    changed = admin(management, "PUT", f"{WORKERS}/a", {"url": url(7), "concurrency": 5})
    assert (changed["state"], changed["managed_by"]) == ("draining", "ops")
    assert (changed["url"], changed["model"], changed["tokenizer"]) == (url(7), None, None)
    eventually(lambda: fleet.present["a"].spec == WorkerSpec("a", url(7), concurrency=5))
    found = admin(management, "GET", f"{WORKERS}/a")
    assert found == changed | {"state": "joining", "problem": found["problem"]}
    admin(management, "POST", f"{WORKERS}/a/drain")
    drained = admin(management, "PUT", f"{WORKERS}/a", {"url": url(8), "managed_by": None})
    assert (drained["managed_by"], drained["drained_by"]) == (None, management.admin_key[:12])
    eventually(lambda: admin(management, "GET", f"{WORKERS}/a")["state"] == "drained")

    other_sources(management)
    before = stored(management)
    for worker, body, status, text in (
        ("a", {"url": url(6)}, 409, "has the URL of worker 'b', which comes from the admin API"),
        ("a", {"url": url(8), "model": "chat"}, 409, "the name of an alias"),
        ("w0", {"url": url(1)}, 409, "worker 'w0' comes from the setting worker_urls"),
        ("x", {"url": url(1)}, 404, "there is no worker 'x'"),
    ):
        answer = admin(management, "PUT", f"{WORKERS}/{worker}", body, status=status)
        assert text in answer["error"]["message"]
    path = f"{WORKERS}/a"
    for change, param in [each for each in WRONG_WORKERS if "id" not in each[0]]:
        management.rejected(management.admin_key, "PUT", path, whole | change, param=param)
    assert stored(management) == before
    assert [each.action for each in audit(management)[2:]] == [
        "worker.change",
        "worker.change",
        "worker.drain",
        "worker.change",
    ]


WRONG_WORKERS = [
    ({"id": "a/b"}, "id"),
    ({"id": ""}, "id"),
    ({"id": "x" * 65}, "id"),
    ({"url": "ftp://a"}, "url"),
    ({"url": "http://user:pw@a"}, "url"),
    ({"url": "file:///etc/passwd"}, "url"),
    ({"kind": "tgi"}, "kind"),
    ({"concurrency": 0}, "concurrency"),
    ({"kv_tokens": 1}, "kv_tokens"),
    ({"kv_events": "http://a"}, "kv_events"),
    ({"kv_events": "tcp://a:5557, tcp://b:5557"}, "kv_events"),
    ({"kv_events": None}, "kv_replay"),
    ({"kv_replay": "tcp://a:5558"}, "kv_replay"),
    ({"model": None}, "tokenizer"),
    ({"model": " x"}, "model"),
    ({"api_key_env": "FAIRSERVE_SECRET_KEY"}, "api_key_env"),
    ({"api_key_env": "DATABASE_URL"}, "api_key_env"),
    ({"weight": 1}, "weight"),
]


def test_an_invalid_worker_is_rejected(management):
    for change, param in WRONG_WORKERS:
        management.rejected(management.admin_key, "POST", WORKERS, WHOLE | change, param=param)
    assert stored(management) == FleetPart()
    assert audit(management) == []


def test_workers_of_other_sources_cannot_be_changed(management):
    other_sources(management)

    def rejected(method, path, body=None, **query):
        return admin(management, method, path, body, status=409, **query)["error"]["message"]

    places = {
        "w0": "the setting worker_urls",
        "f": "the fleet file",
        "e": "the setting workers",
    }
    for worker, place in places.items():
        answered = rejected("DELETE", f"{WORKERS}/{worker}")
        assert answered == f"worker {worker!r} comes from {place}; change it there"
        body = {"id": worker, "url": url(6)}
        assert rejected("POST", WORKERS, body) == f"worker {worker!r} exists already, from {place}"
    assert "has the URL of worker 'f'" in rejected("POST", WORKERS, {"id": "x", "url": url(2)})
    body = {"id": "x", "url": url(6), "model": "chat"}
    assert "the name of an alias" in rejected("POST", WORKERS, body)
    assert "from the fleet file" in rejected("PUT", f"{ALIASES}/chat", {"target": "m"})
    assert "comes from the fleet file; change it there" in rejected("DELETE", f"{ALIASES}/chat")
    assert stored(management) == FleetPart()


def test_workers_of_all_sources_are_drained_and_undrained(management):
    other_sources(management)
    fleet = management.state.fleet.running
    management.on_loop(fleet.embedded_ready, "e", url(4))
    admin(management, "POST", WORKERS, {"id": "a", "url": url(5)}, status=201)
    sources = {"a": "api", "e": "embedded", "f": "file", "w0": "settings"}
    for worker, source in sources.items():
        out = admin(management, "POST", f"{WORKERS}/{worker}/drain")
        assert (out["id"], out["source"], out["state"]) == (worker, source, "draining")
        assert fleet.desired.workers[worker].drained
    assert drains(management) == dict.fromkeys(sources, management.admin_key[:12])
    assert admin(management, "POST", f"{WORKERS}/e/drain")["url"] == url(4)
    for worker, source in sources.items():
        out = admin(management, "POST", f"{WORKERS}/{worker}/undrain")
        assert (out["id"], out["source"], out["state"]) == (worker, source, "joining")
        assert (out["drained_by"], out["drained_at"], out["note"]) == (None, None, None)
        assert not fleet.desired.workers[worker].drained
    assert drains(management) == {}
    management.state.fleet = replace(management.state.fleet, pool={"w0"})
    assert admin(management, "POST", f"{WORKERS}/w0/undrain")["state"] == "serving"
    entries = audit(management)[1:]
    assert [(entry.action, entry.target) for entry in entries] == [
        (action, worker) for action in ("worker.drain", "worker.undrain") for worker in sources
    ]
    assert {entry.actor for entry in entries} == {management.admin_key[:12]}
    for entry in entries:
        before, after = entry.before["drained"], entry.after["drained"]
        assert (before, after) == (entry.action != "worker.drain", entry.action == "worker.drain")
        assert entry.before["source"] == entry.after["source"] == sources[entry.target]


def test_a_drain_waits_for_its_worker_but_not_for_a_new_one(management):
    other_sources(management)
    admin(management, "POST", f"{WORKERS}/f/drain")
    change_file(management, FleetPart())
    for action in ("drain", "undrain"):
        admin(management, "POST", f"{WORKERS}/f/{action}", status=404)
    assert drains(management).keys() == {"f"}
    change_file(management, FILE)
    assert management.state.fleet.running.desired.workers["f"].drained
    change_file(management, FleetPart())
    admin(management, "POST", WORKERS, {"id": "f", "url": url(2)}, status=201)
    assert drains(management) == {}


def test_old_drains_are_evicted_at_the_bound(management, monkeypatch):
    monkeypatch.setattr("fairserve.platform.fleet.service.MAX_DRAINS", 3)
    other_sources(management)
    gone = [
        {"worker_id": f"gone-{n}", "drained_by": "a", "drained_at": utc_now()} for n in range(2)
    ]
    with management.state.session_factory.begin() as session:
        session.execute(insert(FleetDrain), gone)
    for worker in ("e", "f", "w0"):
        admin(management, "POST", f"{WORKERS}/{worker}/drain")
    with management.state.session_factory() as session:
        assert repository.load_stored(session).drains.keys() == {"e", "f", "w0"}


def test_a_drain_names_the_models_without_a_worker(management):
    other_sources(management)
    models = Models(lambda worker_id: True)
    management.state.fleet = replace(management.state.fleet, models=models)
    notes = []
    for workers in ({"w0", "f"}, {"w0"}):
        models.serve(ServedModel(("llama",), "llama", 100, None, frozenset(workers)))
        admin(management, "POST", f"{WORKERS}/w0/undrain")
        notes.append(admin(management, "POST", f"{WORKERS}/w0/drain")["note"])
    alone = "no other worker serves 'llama': its calls wait, and get 503 after the maximum wait"
    assert notes == [None, alone]
    resting = ServedModel(("llama",), "llama", 100, None, drained=frozenset({"w0"}))
    models.serve(resting)
    assert admin(management, "POST", f"{WORKERS}/w0/drain")["note"] == alone
    models.drop("llama")
    answered = admin(management, "POST", f"{WORKERS}/w0/drain")["note"]
    assert answered == "no worker serves: calls get 503"


@ON_BOTH
def test_a_worker_joins_once(management):
    body = {"id": "a", "url": url(5)}
    admin(management, "POST", WORKERS, body, status=201)
    admin(management, "POST", WORKERS, body, status=409)
    admin(management, "POST", WORKERS, body | {"id": "b"}, status=409)
    fleet = management.state.fleet.running  # another server stored it: the table itself rejects
    management.on_loop(fleet.set_stored, StoredFleet())
    admin(management, "POST", WORKERS, body, status=409)
    admin(management, "POST", WORKERS, body | {"id": "b"}, status=409)
    for method, path in (
        ("POST", f"{WORKERS}/x/drain"),
        ("POST", f"{WORKERS}/x/undrain"),
        ("DELETE", f"{WORKERS}/x"),
    ):
        admin(management, method, path, status=404)


def test_aliases_are_set_listed_and_removed(management):
    put = admin(management, "PUT", f"{ALIASES}/gpt-4o", {"target": "llama"})
    shown = {"source": "api", "target": {"llama": 1}, "serving": [], "managed_by": None}
    assert put == {"name": "gpt-4o"} | shown
    split = {"target": {"chat-v1": 9, "chat-v2": 1.5}, "managed_by": "a file"}
    admin(management, "PUT", f"{ALIASES}/org/chat", split)
    listed = admin(management, "GET", ALIASES)
    assert [(item["name"], item["target"]) for item in listed["items"]] == [
        ("gpt-4o", {"llama": 1}),
        ("org/chat", {"chat-v1": 9, "chat-v2": 1.5}),
    ]
    assert [item["managed_by"] for item in listed["items"]] == [None, "a file"]
    assert stored(management).aliases == {item["name"]: item["target"] for item in listed["items"]}
    admin(management, "PUT", f"{ALIASES}/org/chat", {"target": {"chat-v1": 1, "chat-v2": 1}})
    admin(management, "DELETE", f"{ALIASES}/org/chat", status=204)
    admin(management, "DELETE", f"{ALIASES}/org/chat", status=404)
    assert list(stored(management).aliases) == ["gpt-4o"]
    entries = audit(management)
    assert [entry.action for entry in entries] == ["alias.put"] * 3 + ["alias.remove"]
    assert entries[2].before == {"targets": {"chat-v1": 9, "chat-v2": 1.5}, "managed_by": "a file"}
    assert entries[2].after == {"targets": {"chat-v1": 1, "chat-v2": 1}, "managed_by": "a file"}


WRONG_TARGETS = ["", {}, {"m": 0}, {"m": -1}, {"m": "x"}, ["m"], None]


def test_an_invalid_alias_target_is_rejected(management):
    for target in [*WRONG_TARGETS, {f"m{n}": 1 for n in range(21)}]:
        body = {"target": target}
        management.rejected(management.admin_key, "PUT", f"{ALIASES}/x", body, param="target")
    assert stored(management) == FleetPart()


def test_aliases_are_one_level_and_hide_no_model(management):
    models = management.state.models
    models.serve(ServedModel(("llama",), "llama", 100, None))
    admin(management, "PUT", f"{ALIASES}/x", {"target": "m"})
    for name, target, problem in (
        ("y", "x", "has the alias 'x' as target; targets must be models"),
        ("m", "n", "is the target of another alias"),
        ("self", "self", "has the alias 'self' as target"),
        ("llama", "m", "the name of a model that is served"),
    ):
        answer = admin(management, "PUT", f"{ALIASES}/{name}", {"target": target}, status=409)
        assert problem in answer["error"]["message"]


def test_aliases_are_bounded(management, monkeypatch):
    monkeypatch.setattr("fairserve.platform.fleet.service.MAX_WORKERS", 2)
    monkeypatch.setattr("fairserve.platform.fleet.service.MAX_ALIASES", 2)
    blank = {"url": "x", "kind": "vllm", "concurrency": 1, "drained": False}
    rows = [
        blank | {"id": f"w{n}", "url": f"http://{n}", "created_at": utc_now()} for n in range(2)
    ]
    names = [{"name": f"a{n}", "targets": {"m": 1}, "updated_at": utc_now()} for n in range(2)]
    with management.state.session_factory.begin() as session:
        session.execute(insert(FleetWorker), rows)
        session.execute(insert(FleetAlias), names)
    body = {"id": "a", "url": url(5)}
    answer = admin(management, "POST", WORKERS, body, status=409)
    assert answer["error"]["message"] == "the limit of 2 workers is reached; remove one first"
    answer = admin(management, "PUT", f"{ALIASES}/more", {"target": "m"}, status=409)
    assert answer["error"]["message"] == "the limit of 2 aliases is reached; remove one first"
    admin(management, "PUT", f"{ALIASES}/a1", {"target": "n"})
    with management.state.session_factory() as session:
        assert session.scalar(select(func.count(FleetWorker.id))) == 2
