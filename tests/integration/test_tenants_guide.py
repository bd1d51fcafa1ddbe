"""The commands of docs/guide/tenants.md run unchanged against the application."""

import re
import shlex
from pathlib import Path

import pytest
from served_app import served
from typer.main import get_command

from fairserve.platform.server import cli
from fairserve.platform.server.cli import main

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "tenants.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("fairserve ")
]
OF_USER_DATA = ("fairserve user export", "fairserve user erase")
"""Commands whose endpoint has its own tests."""


@pytest.fixture
def url(management):
    """Yield the URL of the application on a port."""
    with served(management.client) as url:
        yield url


def test_the_commands_work_unchanged(management, url, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("FAIRSERVE_URL", url)
    monkeypatch.setenv("FAIRSERVE_API_KEY", management.admin_key)
    assert "`profile.json`" in GUIDE
    profile = re.search(r"```json\n(.*?)```", GUIDE, re.DOTALL).group(1)
    (tmp_path / "profile.json").write_text(profile)
    found = {}
    for command in COMMANDS:
        if command.startswith(OF_USER_DATA):
            continue
        for prefix, name in found.items():
            command = command.replace(f"{prefix}_...", name)
        assert main(shlex.split(command)[1:]) == 0, (command, capsys.readouterr().err)
        out = capsys.readouterr().out
        for prefix in ("tn", "app", "key", "price"):
            if names := re.findall(rf"\b{prefix}_[0-9a-f]{{32}}\b", out):
                found[prefix] = names[-1]
    assert len(COMMANDS) > 25
    (tenant,) = management.call(management.admin_key, "GET", "/admin/tenants")["items"]
    assert (tenant["weight"], tenant["contract"]["max_budget"]) == (2, 500)
    assert (tenant["contract"]["rpm_limit"], tenant["levels"]) == (None, None)
    (app,) = management.call(management.admin_key, "GET", "/admin/apps")["items"]
    assert app["user_contract"]["budget_duration"] == "1d"
    prices = management.call(management.admin_key, "GET", "/admin/prices")["items"]
    assert [(price["model"], price["cached_input"]) for price in prices] == [("small", 0.025)]
    users = management.call(management.admin_key, "GET", "/admin/users")["items"]
    assert [(user["user"], user["blocked"]) for user in users] == [("mallory", True)]


def test_all_commands_can_be_parsed():
    for command in COMMANDS:
        noun, name, *words = shlex.split(command)[1:]
        assert get_command(cli.COMMANDS[noun].load()).commands[name].make_context(name, words), (
            command
        )


def test_the_server_names_the_error(management, url, monkeypatch, capsys):
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("FAIRSERVE_URL", url)
    monkeypatch.setenv("FAIRSERVE_API_KEY", management.admin_key)
    tenant = management.new_tenant("acme")["id"]
    for words, message in (
        (("tenant", "show", "tn_none"), "there is no such tenant"),
        (("tenant", "show", "none"), "there is no tenant 'none'; see fairserve tenant list"),
        (("app", "show", "none", "--tenant", "acme"), "there is no app 'none'"),
        (("tenant", "set", tenant, "--rpm-limit", "0"), ": --rpm-limit: "),
        (("tenant", "set", tenant, "--max-budget", "5"), "a budget needs a --budget-duration"),
        (("tenant", "set", tenant, "--budget-duration", "5h"), "allowed: 1h to 24h"),
        (("app", "list"), "names a tenant here: --tenant NAME"),
        (("user", "show", tenant, "x" * 201), ": USER: "),
    ):
        assert main(list(words)) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err, err
    monkeypatch.setenv("FAIRSERVE_API_KEY", "sk-fs-a-unknown")
    assert main(["tenant", "list"]) == 1
    assert "unknown or revoked" in capsys.readouterr().err
