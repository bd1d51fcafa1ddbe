"""The fleet files of the fleet guide are valid."""

import json
import re
from pathlib import Path

from fairserve.platform.fleet.fleet_file import FleetFileBody, parse_fleet
from fairserve.platform.fleet.schemas import AliasPut, WorkerBody, WorkerJoin, spec_of

TEXT = (Path(__file__).resolve().parents[2] / "docs/guide/fleet.md").read_text()


def test_the_fleet_files_are_valid():
    (example,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    part = parse_fleet(example.encode())
    assert [spec.worker_id for spec in part.workers] == ["node-1", "node-2"]
    assert set(part.tokenizers) == {spec.model for spec in part.workers}


def test_the_request_bodies_are_valid():
    bodies = [json.loads(body) for body in re.findall(r"-d '(\{.*?\})'", TEXT, re.DOTALL)]
    worker, alias = bodies
    assert spec_of(WorkerJoin(**worker)).kv_events is not None
    assert AliasPut(**alias).target == {"chat-v1": 95, "chat-v2": 5}


def test_every_field_of_a_worker_is_described():
    table = TEXT.partition("| field of a worker |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`(?=[^|]*\|[^|]*\|)", table)) >= {"id", *WorkerBody.model_fields}
    for name in FleetFileBody.model_fields:
        assert f"`{name}`" in TEXT or f'"{name}"' in TEXT
