"""Test the fleet file: its allowed contents, and following it while it changes."""

import asyncio
import json
import os

import pytest

from fairserve.engine.wire.base import KvEndpoints
from fairserve.platform.fleet.fleet import Desired, DesiredAlias, DesiredWorker, FleetPart
from fairserve.platform.fleet.fleet_file import (
    FleetFileError,
    FleetFileWatch,
    parse_fleet,
    read_fleet,
)
from fairserve.platform.fleet.worker_spec import WorkerSpec

WHOLE = {
    "workers": [
        {
            "id": "a",
            "url": "http://A.example:8000/v1/",
            "kind": "vllm",
            "model": "llama",
            "kv_events": "tcp://a.example:5557",
            "kv_replay": "tcp://a.example:5558",
            "kv_tokens": 50_000,
            "concurrency": 4,
            "api_key_env": "A_KEY",
        },
        {"id": "b", "url": "https://b.example/openai", "kind": "openai"},
    ],
    "aliases": {"gpt-4o": "llama", "chat": {"chat-v1": 9, "chat-v2": 1}},
    "models": {"llama": {"tokenizer": "/models/llama"}},
}


def parsed(**change):
    return parse_fleet(json.dumps(change).encode())


def worker(**change):
    return {"id": "a", "url": "http://a"} | change


def test_a_complete_file_is_parsed():
    part = parsed(**WHOLE)
    first, second = part.workers
    assert first == WorkerSpec(
        "a",
        "http://a.example:8000",
        "vllm",
        "llama",
        (KvEndpoints("tcp://a.example:5557", "tcp://a.example:5558"),),
        50_000,
        4,
        "A_KEY",
    )
    assert second == WorkerSpec("b", "https://b.example/openai", "openai")
    assert part.aliases == {"gpt-4o": {"llama": 1}, "chat": {"chat-v1": 9, "chat-v2": 1}}
    assert part.tokenizers == {"llama": "/models/llama"}
    assert parsed() == FleetPart()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"worker": []}, "worker: unknown; allowed: workers, aliases, models"),
        ({"workers": [worker(port=1)]}, "workers.0.port: unknown; allowed: id, url, kind, model"),
        (
            {"workers": [worker(url="ftp://a")]},
            "workers.0.url: a worker URL must be http:// or https://",
        ),
        ({"workers": [worker(url="http://")]}, "with a host"),
        ({"workers": [worker(url="http://u:secret@a")]}, "without user"),
        ({"workers": [worker(url="http://a?x=1")]}, "without user, query"),
        ({"workers": [worker(url="http://a:99999")]}, "with a host"),
        ({"workers": [worker(id="a b")]}, "workers.0.id: "),
        ({"workers": [worker(id="")]}, "workers.0.id: "),
        ({"workers": [worker(kind="tgi")]}, "'vllm' or 'openai'"),
        ({"workers": [worker(concurrency=0)]}, "workers.0.concurrency: "),
        ({"workers": [worker(kv_events="udp://a")]}, "workers.0.kv_events: "),
        ({"workers": [worker(kv_replay="tcp://a:1")]}, "kv_replay needs kv_events"),
        ({"workers": [worker(api_key_env="a-b")]}, "workers.0.api_key_env: "),
        ({"workers": [worker(), worker(url="http://b")]}, "worker 'a' is given twice"),
        ({"workers": [worker(), worker(id="b")]}, "workers 'a' and 'b' have the same URL"),
        ({"workers": [worker(), worker(id="b", url="http://A/v1")]}, "have the same URL"),
        ({"aliases": {"x": {}}}, "allowed: a model's name, or 1 to 20"),
        ({"aliases": {"x": {"m": 0}}}, "the weight of 'm' must be a number above 0"),
        ({"aliases": {"x": {"m": True}}}, "the weight of 'm'"),
        ({"aliases": {"x": ["m"]}}, "allowed: a model's name"),
        ({"aliases": {"": "m"}}, "aliases"),
        ({"aliases": {"x": "x"}}, "has the alias 'x' as target; targets must be models"),
        ({"aliases": {"x": "y", "y": "m"}}, "'x' has the alias 'y' as target"),
        ({"aliases": {"m": "n"}, "workers": [worker(model="m")]}, "'m'"),
        ({"models": {"m": {"template": "x"}}}, "unknown; allowed: tokenizer"),
        ({"models": {"m": "x"}}, "models.m"),
        ([], "valid dictionary"),
    ],
)
def test_errors_of_a_fleet_file_are_named(content, problem):
    with pytest.raises(FleetFileError) as caught:
        parse_fleet(json.dumps(content).encode())
    assert problem in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is not JSON"),
        (b'{"workers": [', "it is not JSON"),
        (b"\xff", "it is not UTF-8"),
        (b'{"aliases": {"x": "m", "x": "n"}}', "'x' is given twice"),
        (b"[" * 100_000, "it is"),
        (b" " * (5 << 20), "larger than"),
    ],
)
def test_invalid_json_is_named(content, problem):
    with pytest.raises(FleetFileError, match=problem):
        parse_fleet(content)


def test_errors_name_the_path(tmp_path):
    with pytest.raises(FleetFileError, match=r"the fleet file .*none\.json: No such file"):
        read_fleet(tmp_path / "none.json")


class Watched:
    """A watch over a file, with what it applied."""

    def __init__(self, path):
        self.path = path
        self.others, self.served, self.applied = Desired(), set(), []
        self.watch = FleetFileWatch(
            path, lambda: self.others, lambda: self.served, self.applied.append
        )

    def write(self, content):
        text = content if isinstance(content, str) else json.dumps(content)
        self.path.write_text(text)

    async def check(self):
        """Return the ids that one check applied; None if it applied nothing."""
        before = len(self.applied)
        await self.watch.check()
        new = self.applied[before:]
        return [spec.worker_id for spec in new[0].workers] if new else None


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path / "fleet.json")


async def test_changes_are_applied_once(watched):
    watched.write({"workers": [worker()]})
    assert await watched.check() == ["a"]
    assert await watched.check() is None
    watched.write({"workers": [worker(), worker(id="b", url="http://b")]})
    assert await watched.check() == ["a", "b"]
    other = watched.path.with_name("new")
    other.write_text(json.dumps({"workers": [worker(id="c")]}))
    os.replace(other, watched.path)
    assert await watched.check() == ["c"]


async def test_a_change_within_the_clock_resolution_is_detected(watched):
    """Both versions have the same size, and the same time to the nanosecond."""
    watched.write({"workers": [worker(id="a")]})
    stamp = watched.path.stat().st_mtime_ns
    assert await watched.check() == ["a"]
    watched.write({"workers": [worker(id="b")]})
    os.utime(watched.path, ns=(stamp, stamp))
    assert await watched.check() == ["b"]


async def test_an_unchanged_file_is_not_read(watched, monkeypatch):
    watched.write({"workers": [worker()]})
    os.utime(watched.path, (1, 1))
    assert await watched.check() == ["a"]
    monkeypatch.setattr(type(watched.path), "open", None)
    assert await watched.check() is None


async def test_a_broken_file_changes_nothing_and_is_logged_once(watched, caplog):
    watched.write({"workers": [worker()]})
    await watched.check()
    for broken in ("{", '{"workers": [{"id": "a"}]}'):
        caplog.clear()
        watched.write(broken)
        assert await watched.check() is None
        assert await watched.check() is None
        (record,) = caplog.records
        assert "is invalid" in record.getMessage()
        assert watched.watch.problem in record.getMessage()
    assert watched.watch.problem == "workers.0.url: Field required"
    watched.path.unlink()
    assert await watched.check() is None
    assert watched.watch.problem == "No such file or directory"
    watched.write({"workers": [worker()]})
    assert await watched.check() == ["a"], "applied again, although it equals the part before"
    assert watched.watch.problem == ""


async def test_a_clash_with_another_source_ends_with_that_source(watched):
    watched.others = Desired(
        {"a": DesiredWorker(WorkerSpec("a", "http://elsewhere"), "api")},
        {"chat": DesiredAlias({"m": 1}, "api")},
    )
    watched.write({"workers": [worker()]})
    assert await watched.check() is None
    assert watched.watch.problem == "worker 'a' exists already, from the admin API"
    watched.write({"aliases": {"chat": "m"}})
    assert await watched.check() is None
    assert watched.watch.problem == "alias 'chat' exists already, from the admin API"
    watched.others = Desired()
    assert await watched.check() == []
    watched.served = {"llama"}
    watched.write({"aliases": {"llama": "m"}})
    assert await watched.check() is None
    assert "the name of a model that is served" in watched.watch.problem


async def test_reading_does_not_block_the_loop(watched, monkeypatch):
    watched.write({})
    inside = []
    monkeypatch.setattr(
        watched.watch, "_read", lambda: inside.append(asyncio.events._get_running_loop())
    )
    await watched.check()
    assert inside == [None], "on a thread without a loop"
