"""The fleet files of the fleet guide are valid, and its compose file sets existing options."""

import json
import re
from pathlib import Path

import pytest
import yaml

from fairserve.platform.fleet.fleet_file import FleetFileBody, parse_fleet
from fairserve.platform.fleet.schemas import AliasPut, WorkerIn, WorkerJoin
from fairserve.platform.server.settings import FIELDS, Settings
from fairserve.platform.server.settings_flags import environment_names

GUIDE = Path(__file__).resolve().parents[2] / "docs/guide"
TEXT = (GUIDE / "fleet.md").read_text()
COMPOSE = yaml.safe_load((GUIDE / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
PINNED = re.compile(r"^[\w./-]+:v?\d+\.\d+(\.\d+)?(-\w+)*$")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for field in FIELDS:
        for name in environment_names(field):
            monkeypatch.delenv(name, raising=False)


def filled(value):
    """Replace Compose's ``${NAME:?why}`` with a value that is long enough for a secret."""
    return re.sub(r"\$\{(\w+)[^}]*\}", "x" * 40, str(value))


def test_the_fleet_files_are_valid():
    (example,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    part = parse_fleet(example.encode())
    assert [spec.worker_id for spec in part.workers] == ["node-1", "node-2"]
    assert set(part.tokenizers) == {spec.model for spec in part.workers}


def test_the_request_bodies_are_valid():
    bodies = [json.loads(body) for body in re.findall(r"-d '(\{.*?\})'", TEXT, re.DOTALL)]
    worker, alias = bodies
    assert WorkerJoin(**worker).spec().kv_events is not None
    assert AliasPut(**alias).target == {"chat-v1": 95, "chat-v2": 5}


def test_every_field_of_a_worker_is_described():
    table = TEXT.partition("| field of a worker |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`(?=[^|]*\|[^|]*\|)", table)) >= set(WorkerIn.model_fields)
    for name in FleetFileBody.model_fields:
        assert f"`{name}`" in TEXT or f'"{name}"' in TEXT


def test_the_platform_settings_exist_and_are_valid(monkeypatch):
    given = COMPOSE["x-platform"]["environment"]
    known = {name for field in FIELDS for name in environment_names(field)}
    others = {"HF_TOKEN", "FAIRSERVE_WORKER_KEY_LLAMA"}
    assert set(given) - others <= known
    for name, value in given.items():
        monkeypatch.setenv(name, filled(value))
    settings = Settings()
    assert not settings.db.embedded_database
    assert (settings.server.port, settings.server.host) == (8000, "0.0.0.0")
    (mounted,) = SERVICES["platform"]["configs"]
    assert str(settings.fleet.fleet_file) == mounted["target"]


def test_the_fleet_of_the_compose_file_is_valid():
    part = parse_fleet(COMPOSE["configs"]["fleet"]["content"].encode())
    (spec,) = part.workers
    flags = SERVICES["vllm"]["command"]
    assert f"--served-model-name={spec.model}" in flags
    assert spec.url == "http://vllm:8000"
    assert "--port=8000" in flags
    assert spec.api_key_env in COMPOSE["x-platform"]["environment"]
    events = json.loads(flags[flags.index("--kv-events-config") + 1])
    assert spec.kv_events.events == events["endpoint"].replace("*", "vllm")
    assert spec.kv_events.replay == events["replay_endpoint"].replace("*", "vllm")
    assert part.tokenizers[spec.model] in flags[0]


def test_images_are_pinned_and_services_exist():
    for name, service in SERVICES.items():
        if "build" in service:
            base = re.match(r"FROM (\S+)", service["build"]["dockerfile_inline"])[1]
            assert service["image"].endswith(":local")
        else:
            base = service["image"]
        assert PINNED.match(base), f"{name}: {base}"
        for needed in service.get("depends_on", {}):
            assert needed in SERVICES
        for network in service["networks"]:
            assert network in COMPOSE["networks"]
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in COMPOSE["volumes"]
    assert SERVICES["migrate"]["command"] == ["db", "upgrade"]
    assert COMPOSE["networks"]["engines"] == {"internal": True}
