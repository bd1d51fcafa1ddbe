"""The benchmark of servers that share an order measures real ones."""

import json

import pytest
from redis_process import RedisProcess

from fairserve.benchmarks.commands import bench


@pytest.mark.deep
def test_a_tiny_run_measures_every_part(tmp_path, new_postgres_url, capsys):
    redis, out = RedisProcess(tmp_path / "redis"), tmp_path / "out.json"
    flags = {"servers": "1,2", "rate": "20", "rounds": "1", "seconds": "0.5", "json": str(out)}
    flags |= {"database-url": new_postgres_url(), "redis-url": redis.url}
    try:
        assert bench(["shared", *(f"--{name}={text}" for name, text in flags.items())]) == 0
    finally:
        redis.close()
    turns = json.loads(out.read_text())["turns"]
    assert {name: len(of) for name, of in turns.items()} == {"alone": 2, "1 api": 1, "2 api": 1}
    for name, of in turns.items():
        parts = {"api"} if name == "alone" else {"api", "control", "redis"}
        for turn in of:
            assert set(turn["cpu_ms"]) == parts
            assert min(turn["cpu_ms"].values()) > 0
            assert turn["max_rps"] > 1
            assert 0 < turn["p50_ms"] <= turn["p99_ms"]
            assert ("added_p50_ms" in turn) is (name != "alone")
    rounds = zip(turns["alone"], [*turns["1 api"], *turns["2 api"]], strict=True)
    for alone, shared in rounds:
        assert shared["added_p99_ms"] == pytest.approx(shared["p99_ms"] - alone["p99_ms"])
    assert "control CPU ms" in capsys.readouterr().out


@pytest.mark.parametrize("servers", ["0", "1,", "two"])
def test_numbers_of_servers_are_checked(servers, capsys):
    flags = ["--database-url=postgresql://x/y", "--redis-url=redis://x", f"--servers={servers}"]
    assert bench(["shared", *flags]) == 2
    assert "numbers of 1 or more" in " ".join(capsys.readouterr().err.split())
