"""``fairserve apply`` and ``fairserve export`` against the shipped server."""

import os
import stat
from contextlib import closing

import pytest
import yaml
from gateway_server import ThreadServer
from served_app import served

from fairserve.platform.server.apply.declaration import read_declaration
from fairserve.platform.server.cli import main

DECLARED = """
managed_by: platform-config
prices:
  - {model: "*", input: 1, output: 4}
  - {model: small, input: 0.25, cached_input: 0.025, output: 1.5, reasoning: 0.75}
  - {model: small, input: 0.5, output: 2, valid_from: 2099-01-01T00:00:00Z}
throttling:
  system: fairserve
  parameters: {high_watermark: 1.6, local.quantum: 64}
workers:
  api-1:
    {url: "http://127.0.0.1:9", kind: openai, model: small, tokenizer: org/small, kv_tokens: 4096}
  api-2:
    {url: "http://127.0.0.1:9/of/2", kv_events: "tcp://a:1", api_key_env: FAIRSERVE_WORKER_KEY_2}
aliases:
  chat: small
  split: {chat-v1: 9, chat-v2: 1}
tenants:
  Acme & Co:
    weight: 2
    levels: tenant > app > user
    contract:
      {max_budget: 500.5, soft_budget: 400, budget_duration: 1mo, soft_end: finish_runs}
    apps:
      research:
        profile:
          stages:
            - {input_tokens: 2000, system_tokens: 200, output_tokens: 150}
            - {input_tokens: 400, output_tokens: 90.5}
          calls_per_interaction: 5
        weight: 3
        limits: {user_rpm: 60, app_rpm: 600, new_users_per_minute: 7}
        contract: {tpm_limit: 200000, allowed_models: [small, chat]}
        user_contract: {max_parallel_requests: 4}
        user_headers: [x-employee]
        cors_origins: ["https://chat.example.org"]
        run_rules: []
      batch:
        profile: {stages: [{input_tokens: 9, output_tokens: 9}], idle_timeout_s: 60}
    users:
      team/zoé: {weight: 0.5, priority_weight: 4, rpm: 30, contract: {rpm_limit: 40}}
    webhooks:
      "https://1.1.1.1/hook?token=of-the-receiver":
        {events: [budget.reached, alarm.opened], description: of ops}
  Beta: {}
"""


def run(capsys, server, *words):
    """Run a command; return its exit code and its output."""
    code = main([*words, "--url", server.url])
    out, err = capsys.readouterr()
    assert server.admin_key not in out + err
    return code, out, err


@pytest.fixture
def apply(capsys, tmp_path):
    """Return a function that applies a declaration to a server."""
    path = tmp_path / "tenants.yaml"

    def applied(server, text, *words):
        path.write_text(text)
        return run(capsys, server, "apply", "-f", str(path), *words)

    return applied


def started(data_dir, worker, monkeypatch):
    """Return a server without a tenant."""
    server = ThreadServer(data_dir, start=False, worker_urls=worker.url)
    server.app_key = "none"
    server.start()
    monkeypatch.setenv("FAIRSERVE_API_KEY", server.admin_key)
    monkeypatch.setenv("NO_PROXY", "*")
    return server


def test_the_export_of_a_server_makes_an_empty_one_equal(
    apply, worker, capsys, monkeypatch, tmp_path
):
    keys = tmp_path / "keys"
    with closing(started(tmp_path / "a", worker, monkeypatch)) as server:
        assert apply(server, DECLARED, "--dry-run")[0] == 2
        assert server.admin("GET", "/admin/tenants").json()["total"] == 0
        code, out, err = apply(server, DECLARED, "--keys", str(keys))
        assert code == 0, (out, err)
        assert "of-the-receiver" not in out
        files = {path.name: path.read_text().strip() for path in keys.iterdir()}
        assert sorted(files) == [
            "acme-co.batch.key",
            "acme-co.key",
            "acme-co.research.key",
            "acme-co.webhook.1-1-1-1-hook.secret",
            "beta.key",
        ]
        assert {stat.S_IMODE(os.stat(path).st_mode) for path in keys.iterdir()} == {0o600}
        assert not [key for key in files.values() if key in out]
        app_key, tenant_key = files["acme-co.research.key"], files["acme-co.key"]
        server.call(app_key, "GET", "/v1/throttling/events", status=200)
        apps = server.call(tenant_key, "GET", "/v1/apps", status=200)["items"]
        assert {app["name"]: app["managed_by"] for app in apps} == {
            "research": "platform-config",
            "batch": "platform-config",
        }
        assert apply(server, DECLARED, "--dry-run", "--prune") == (0, "No differences.\n", "")

        limits = {"limits": {"user_rpm": 6}, "contract": {"tpm_limit": None}}
        research = next(app["id"] for app in apps if app["name"] == "research")
        server.call(tenant_key, "PATCH", f"/v1/apps/{research}", limits, status=200)
        code, out, _ = apply(server, DECLARED, "--dry-run")
        assert code == 2
        assert "~ app Acme & Co/research\n    limits.user_rpm: 6 -> 60\n" in out
        assert "    contract.tpm_limit: none -> 200000\n" in out
        assert "Plan: 0 to create, 1 to change, 0 to delete." in out
        assert apply(server, DECLARED)[0] == 0
        change_workers_and_throttling(apply, server)
        server.new_app({"api_key": tenant_key}, "added last")
        code, exported, _ = run(capsys, server, "export")
        assert code == 0
        assert not [key for key in files.values() if key in exported]
    with closing(started(tmp_path / "b", worker, monkeypatch)) as server:
        secrets = tmp_path / "secrets"
        words = ("--keys", str(secrets), "--kubernetes")
        assert apply(server, exported, *words)[0] == 0
        assert run(capsys, server, "export")[1] == exported
        secret = yaml.safe_load((secrets / "acme-co.research.yaml").read_text())
        assert (secret["kind"], secret["metadata"]["name"]) == (
            "Secret",
            "fairserve-acme-co.research",
        )
        server.call(secret["stringData"]["api-key"], "GET", "/v1/throttling/events", status=200)
    found, declared = (read_declaration(tmp_path, text.encode()) for text in (exported, DECLARED))
    del found.tenants["Acme & Co"].apps["added last"]
    declared.tenants["Acme & Co"].apps["research"].profile.idle_timeout_s = 300  # the server's
    assert found == declared


def change_workers_and_throttling(apply, server):
    """Change them by hand and in the file; then make them as declared again."""
    workers, throttling = "/admin/cluster/workers", "/admin/throttling"
    put = {"system": "fcfs", "parameters": {"background_calls": 3}}
    assert server.admin("PUT", throttling, json=put).status_code == 200
    body = {"url": "http://127.0.0.1:9", "concurrency": 7}
    assert server.admin("PUT", f"{workers}/api-1", json=body).status_code == 200
    code, out, _ = apply(server, DECLARED, "--dry-run")
    assert code == 2
    assert "~ throttling\n    system: fcfs -> fairserve\n" in out
    assert "    parameters.background_calls: 3 -> none\n" in out
    assert "~ worker api-1\n" in out
    assert "    concurrency: 7 -> 16\n" in out
    fewer = DECLARED.replace("  api-1:\n", "  new:\n")  # with the URL of the old one
    code, out, err = apply(server, fewer, "--prune")
    assert (code, err) == (0, "")
    assert out.index("deleted worker api-1") < out.index("created worker new")
    assert apply(server, DECLARED, "--prune")[0] == 0
    listed = server.admin("GET", workers).json()["items"]
    stored = {each["id"]: each for each in listed if each["source"] == "api"}
    assert {name: each["managed_by"] for name, each in stored.items()} == {
        "api-1": "platform-config",
        "api-2": "platform-config",
    }
    assert (stored["api-1"]["tokenizer"], stored["api-1"]["concurrency"]) == ("org/small", 16)
    assert server.admin("GET", throttling).json()["system"] == "fairserve"


class Managed:
    """A server of the management tests, as the commands need it."""

    def __init__(self, management, url):
        self.url, self.admin_key = url, management.admin_key
        self._management = management

    def read(self, path, **query):
        return self._management.call(self.admin_key, "GET", path, **query)["items"]


@pytest.fixture
def server(management, monkeypatch):
    """Yield the application on a port."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("FAIRSERVE_API_KEY", management.admin_key)
    with served(management.client) as url:
        yield Managed(management, url)


APP = "{profile: {stages: [{input_tokens: 9, output_tokens: 9}]}}"


def test_an_error_ends_it_and_another_run_has_the_rest(
    apply, management, server, tmp_path, monkeypatch
):
    text = "tenants: {Acme: {webhooks: {'http://127.0.0.1/?token=1': {events: [budget.reached]}}}}"
    words = ("--keys", str(tmp_path / "keys"))
    for wrong in (("--prine",), ("--keys",), ("--url", "ftp://host")):
        assert apply(server, text, *wrong)[0] == 1, "2 would be a difference"
    code, out, err = apply(server, text)
    assert (code, "--keys" in err) == (1, True), "the keys would be lost"
    assert server.read("/admin/tenants") == []
    code, out, err = apply(server, text, *words)
    assert code == 1
    assert "created tenant Acme; its secret is in " in out
    assert "webhook Acme http://127.0.0.1/: url: " in err
    assert "1 changes are made, 1 are not" in err
    code, out, err = apply(server, text.replace("http://127.0.0.1", "https://1.1.1.1"), *words)
    assert (code, "Acme\n" in out.replace("created webhook", "")) == (0, False)
    assert [each["managed_by"] for each in server.read("/admin/webhooks")] == ["apply"]
    (acme,) = server.read("/admin/tenants")
    hook = {"url": "https://1.1.1.1/?token=1", "events": ["budget.reached"]}
    management.call(server.admin_key, "POST", "/v1/webhooks", hook, status=201, tenant=acme["id"])
    code, out, err = apply(server, text)
    assert (code, out, "token" in err) == (1, "", False)
    assert "tenant 'Acme' has two webhooks of https://1.1.1.1/" in err
    second = server.read("/admin/webhooks")[1]["id"]
    management.call(server.admin_key, "DELETE", f"/v1/webhooks/{second}", tenant=acme["id"])
    viewer = management.call(
        server.admin_key, "POST", "/admin/keys", {"role": "viewer"}, status=201
    )
    monkeypatch.setenv("FAIRSERVE_API_KEY", viewer["api_key"])
    assert apply(server, text, "--dry-run")[0] == 2, "a viewer may plan"


def test_prune_deletes_what_the_declaration_manages_and_keeps_blocks(
    apply, management, server, tmp_path
):
    words = ("--keys", str(tmp_path / "keys"))
    whole = f"""
prices:
  - {{model: m, input: 1, output: 1}}
  - {{model: m, input: 2, output: 2, valid_from: 2099-01-01T00:00:00Z}}
aliases: {{chat: m}}
tenants:
  Acme:
    apps: {{one: {APP}, two: {APP}}}
    users: {{anna: {{weight: 2}}, mallory: {{rpm: 3}}}}
"""
    assert apply(server, whole, *words)[0] == 0
    (acme,) = server.read("/admin/tenants")
    path = f"/admin/users/{acme['id']}/mallory"
    blocked = {"blocked": True, "rpm": 3}
    put = management.call(server.admin_key, "PUT", path, blocked)
    assert put["managed_by"] == "apply", "a block does not change who manages the user"
    management.new_app(
        {"api_key": (tmp_path / "keys" / "acme.key").read_text().strip()}, "of the tenant"
    )

    one = next(app for app in server.read("/admin/apps") if app["name"] == "one")
    profile = {"stages": [{"input_tokens": 1, "output_tokens": 1}], "idle_timeout_s": 77}
    place = f"/v1/apps/{one['id']}"
    management.call(server.admin_key, "PATCH", place, {"profile": profile}, tenant=acme["id"])

    less = f"tenants: {{Acme: {{apps: {{one: {APP}}}}}}}"
    code, out, _ = apply(server, less, "--dry-run")
    assert (code, "\n- " in out) == (2, False)
    assert "1 to change, 0 to delete" in out
    assert "! app Acme/two is no longer declared, and stays" in out
    assert apply(server, less, "--prune")[0] == 0
    assert {app["name"] for app in server.read("/admin/apps")} == {"one", "of the tenant"}
    one = management.call(server.admin_key, "GET", place, tenant=acme["id"])
    assert one["profile"]["stages"][0]["input_tokens"] == 9
    assert one["profile"]["idle_timeout_s"] == 77, "it is not declared"
    (mallory,) = server.read("/admin/users")
    assert (mallory["user"], mallory["blocked"], mallory["rpm"]) == ("mallory", True, None)
    assert mallory["managed_by"] is None
    assert [price["input"] for price in server.read("/admin/prices")] == [1], "it is in force"
    assert server.read("/admin/cluster/aliases") == []
    code, out, _ = apply(server, less, "--prune", "--dry-run")
    assert code == 0, out

    assert "- tenant Acme with its 2 apps" in apply(server, "", "--prune", "--dry-run")[1]
    assert apply(server, "", "--prune")[0] == 0
    assert server.read("/admin/tenants") == server.read("/admin/apps") == []


def test_only_an_operator_sets_who_manages_an_object(management):
    key = management.new_tenant("acme")["api_key"]
    hook = {"url": "https://1.1.1.1/", "events": ["budget.reached"]}
    profile = {"stages": [{"input_tokens": 1, "output_tokens": 1}]}
    mine = {"managed_by": "apply"}
    app = management.call(key, "POST", "/v1/apps", {"name": "a", "profile": profile}, status=201)
    hooked = management.call(key, "POST", "/v1/webhooks", hook, status=201)
    for method, path, body in (
        ("POST", "/v1/apps", {"name": "b", "profile": profile}),
        ("PATCH", f"/v1/apps/{app['id']}", {}),
        ("POST", "/v1/webhooks", hook),
        ("PATCH", f"/v1/webhooks/{hooked['id']}", {}),
    ):
        error = management.call(key, method, path, body | mine, status=403)["error"]
        assert error["param"] == "managed_by"
