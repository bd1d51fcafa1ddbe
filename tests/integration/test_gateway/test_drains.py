"""Workers of the settings and of the fleet file are drained over HTTP.

Embedded workers are drained in ``test_processes.py``.
"""

import pytest
from processes import eventually
from scripted_worker import ScriptedWorker

from .test_fleet import (
    WORKERS,
    FleetFile,
    becomes,
    call,
    drain,
    let_end,
    listed,
    more,
    states,
    traffic,
)


@pytest.fixture(scope="module")
def scripted_three():
    found = [ScriptedWorker() for _ in range(3)]
    yield found
    for worker in found:
        worker.close()


def test_workers_of_settings_and_file_stay_drained_when_the_file_changes(
    start_server, scripted_three, tmp_path
):
    one, two, three = scripted_three
    file = FleetFile(tmp_path / "fleet.json")
    file.workers(("f0", two), ("f1", three))
    server = start_server("--worker-urls", one.url, "--fleet-file", str(file.path))
    whole = {"w0": ("settings", "serving"), "f0": ("file", "serving"), "f1": ("file", "serving")}
    becomes(server, whole)
    with traffic(server) as answers:
        more(answers)
        for worker_id in ("w0", "f0"):
            drain(server, worker_id)
        resting = whole | {"w0": ("settings", "drained"), "f0": ("file", "drained")}
        becomes(server, resting)
        let_end(answers)
        assert more(answers) == {"f1"}
        file.workers(("f0", two), ("f1", three), aliases={"chat": {"scripted": 1}})
        eventually(lambda: server.admin("GET", "/admin/cluster/aliases").json()["items"])
        assert states(server) == resting
        file.workers(("f1", three))
        becomes(server, {"w0": ("settings", "drained"), "f1": ("file", "serving")})
        file.workers(("f0", two), ("f1", three))
        becomes(server, resting)
        let_end(answers)
        assert more(answers) == {"f1"}
        for worker_id in ("w0", "f0"):
            drain(server, worker_id, "undrain")
        becomes(server, whole)
        eventually(lambda: {"w0", "f0"} <= more(answers), "they get no calls")
    assert [answer.text for answer in answers if answer.status_code != 200] == []


def test_the_last_worker_drained_keeps_its_model(start_server, scripted_three):
    """Calls of its model wait for it; otherwise the model would be unknown."""
    server = start_server("--worker-urls", scripted_three[0].url, "--max-queue-wait-s", "0.2")
    becomes(server, {"w0": ("settings", "serving")})
    assert drain(server, "w0")["note"].startswith("no other worker serves 'scripted'")
    becomes(server, {"w0": ("settings", "drained")})
    assert listed(server)["w0"]["model"] == "scripted"
    rejected = call(server)
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (503, "queue_timeout")
    drain(server, "w0", "undrain")
    becomes(server, {"w0": ("settings", "serving")})
    assert call(server).headers["x-fairserve-worker"] == "w0"


def test_only_admins_drain(start_server, scripted_three):
    server = start_server("--worker-urls", scripted_three[0].url)
    serving = {"w0": ("settings", "serving")}
    becomes(server, serving)
    for key, status in ((server.tenant_key, 403), (server.app_key, 403), ("none", 401)):
        for what in ("drain", "undrain"):
            answer = server.request("POST", f"{WORKERS}/w0/{what}", key)
            assert answer.status_code == status
    assert states(server) == serving
