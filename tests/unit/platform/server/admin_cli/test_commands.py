"""Test the admin commands against a scripted server: their requests, output and errors."""

import json
import socket
import stat

import pytest
from command_words import every_command, forms_of
from scripted_api import ScriptedApi
from typer.main import get_command

from fairserve.platform.server.cli import COMMANDS, main

KEY = "sk-fs-a-the-key-that-nobody-may-see"
NOTHING = {"rpm_limit": None, "soft_end": "warn", "soft_budget": None, "allowed_models": None}
TENANT = {
    "id": "tn_1",
    "name": "Acme",
    "weight": 2.0,
    "contract": NOTHING | {"rpm_limit": 5},
    "suspended_at": None,
    "deleted_at": None,
}
PROFILE = {"stages": [{"input_tokens": 1, "output_tokens": 2}]}
USER = {
    "tenant_id": "tn_1",
    "user": "a/b",
    "weight": 3.0,
    "priority_weight": 4.0,
    "rpm": None,
    "blocked": True,
    "contract": NOTHING | {"soft_budget": 0.5, "soft_end": "finish_runs", "budget_duration": "1d"},
    "updated_at": None,
}


@pytest.fixture
def api(monkeypatch):
    monkeypatch.setenv("FAIRSERVE_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "*")
    with ScriptedApi() as api:
        monkeypatch.setenv("FAIRSERVE_URL", api.url)
        yield api


def run(*words):
    """Return the exit code of ``fairserve`` with these words."""
    return main([str(word) for word in words])


LIMITS = ("--rpm-limit", "5", "--max-budget", "0.5", "--soft-budget", "none")
LIMITS_BODY = {"rpm_limit": 5, "max_budget": 0.5, "soft_budget": None}
APP = "/v1/apps/app_1"
REQUESTS = [
    ("tenant create Acme", ("POST", "/admin/tenants", {}, {"name": "Acme"})),
    (
        ("tenant", "create", "Acme", "--weight", "2", *LIMITS),
        ("POST", "/admin/tenants", {}, {"name": "Acme", "weight": 2, "contract": LIMITS_BODY}),
    ),
    (
        ("tenant", "set", "tn_1", "--levels", "tenant > app > user"),
        ("PATCH", "/admin/tenants/tn_1", {}, {"levels": "tenant > app > user"}),
    ),
    ("tenant set tn_1 --levels none", ("PATCH", "/admin/tenants/tn_1", {}, {"levels": None})),
    ("tenant show tn_1", ("GET", "/admin/tenants/tn_1", {}, None)),
    ("tenant show tn_a/b", ("GET", "/admin/tenants/tn_a/b", {}, None)),
    ("tenant set tn_1 --name New", ("PATCH", "/admin/tenants/tn_1", {}, {"name": "New"})),
    (
        ("tenant", "set", "tn_1", "--allowed-models", "a, org/b", "--tpm-limit", "none"),
        (
            "PATCH",
            "/admin/tenants/tn_1",
            {},
            {"contract": {"allowed_models": ["a", "org/b"], "tpm_limit": None}},
        ),
    ),
    ("tenant suspend tn_1", ("PATCH", "/admin/tenants/tn_1", {}, {"suspended": True})),
    ("tenant resume tn_1", ("PATCH", "/admin/tenants/tn_1", {}, {"suspended": False})),
    ("tenant delete tn_1", ("DELETE", "/admin/tenants/tn_1", {}, None)),
    ("tenant restore tn_1", ("POST", "/admin/tenants/tn_1/restore", {}, None)),
    (
        (
            "app",
            "set",
            "app_1",
            "--user-headers",
            "",
            "--cors-origins",
            "https://a.example, none.example",
        ),
        (
            "PATCH",
            "/v1/apps/app_1",
            {},
            {"user_headers": [], "cors_origins": ["https://a.example", "none.example"]},
        ),
    ),
    (
        "app set app_1 --user-headers x-user --cors-origins none",
        ("PATCH", "/v1/apps/app_1", {}, {"user_headers": ["x-user"], "cors_origins": None}),
    ),
    (
        "app set app_1 --run-rules aliases,whole_trace",
        ("PATCH", "/v1/apps/app_1", {}, {"run_rules": ["aliases", "whole_trace"]}),
    ),
    ("app set app_1 --run-rules none", ("PATCH", "/v1/apps/app_1", {}, {"run_rules": None})),
    (
        "app register chat --profile profile.json",
        ("POST", "/v1/apps", {}, {"name": "chat", "profile": PROFILE}),
    ),
    (
        f"app register chat --profile profile.json --tenant tn_1 --weight 2 {' '.join(LIMITS)}",
        (
            "POST",
            "/v1/apps",
            {"tenant": "tn_1"},
            {"name": "chat", "weight": 2, "profile": PROFILE, "contract": LIMITS_BODY},
        ),
    ),
    (
        "app set app_1 --user-rpm 5 --app-rpm none --new-users-per-minute 9"
        " --user-rpm-limit 6 --user-soft-end warn",
        (
            "PATCH",
            APP,
            {},
            {
                "limits": {"user_rpm": 5, "app_rpm": None, "new_users_per_minute": 9},
                "user_contract": {"rpm_limit": 6, "soft_end": "warn"},
            },
        ),
    ),
    ("app show app_1 --tenant tn_1", ("GET", APP, {"tenant": "tn_1"}, None)),
    ("app suspend app_1", ("PATCH", APP, {}, {"suspended": True})),
    ("app resume app_1", ("PATCH", APP, {}, {"suspended": False})),
    ("app delete app_1 --tenant tn_1", ("DELETE", APP, {"tenant": "tn_1"}, None)),
    ("app restore app_1", ("POST", f"{APP}/restore", {}, None)),
    ("app profile app_1 --tenant tn_1", ("GET", f"{APP}/profile", {"tenant": "tn_1"}, None)),
    (
        "app profile app_1 --mode learned",
        ("PUT", "/admin/apps/app_1/profile", {}, {"mode": "learned"}),
    ),
    (
        "app profile app_1 --mode pinned --profile profile.json",
        ("PUT", "/admin/apps/app_1/profile", {}, {"mode": "pinned", "profile": PROFILE}),
    ),
    ("key create --app app_1", ("POST", f"{APP}/keys", {}, {})),
    (
        ("key", "create", "--tenant-id", "tn_1", "--name", "ci", "--expires-at", "2099-01-01"),
        ("POST", "/admin/tenants/tn_1/keys", {}, {"name": "ci", "expires_at": "2099-01-01"}),
    ),
    (
        "key rotate --app app_1 --tenant tn_1 --grace 60",
        ("POST", f"{APP}/keys/rotate", {"tenant": "tn_1"}, {"grace_s": 60}),
    ),
    ("key create --admin --name anna", ("POST", "/admin/keys", {}, {"name": "anna"})),
    ("key rotate --admin", ("POST", "/admin/keys/rotate", {}, {"grace_s": 0.0})),
    ("key revoke key_1 --admin", ("DELETE", "/admin/keys/key_1", {}, None)),
    ("key rename key_1 anna --admin", ("PATCH", "/admin/keys/key_1", {}, {"name": "anna"})),
    ("key rename key_1 ci --app app_1", ("PATCH", f"{APP}/keys/key_1", {}, {"name": "ci"})),
    ("key revoke key_1 --app app_1", ("DELETE", f"{APP}/keys/key_1", {}, None)),
    (
        "key revoke key_1 --tenant-id tn_1",
        ("DELETE", "/admin/tenants/tn_1/keys/key_1", {}, None),
    ),
    (
        "price set m --input 1 --output 2.5 --valid-from 2099-01-01T00:00:00Z",
        (
            "POST",
            "/admin/prices",
            {},
            {"model": "m", "input": 1.0, "output": 2.5, "valid_from": "2099-01-01T00:00:00Z"},
        ),
    ),
    ("price delete price_1", ("DELETE", "/admin/prices/price_1", {}, None)),
    ("user show tn_1 team/zoé", ("GET", "/admin/users/tn_1/team/zoé", {}, None)),
    ("user reset tn_1 team/zoé", ("DELETE", "/admin/users/tn_1/team/zoé", {}, None)),
    (
        "user export tn_1 team/zoé",
        ("GET", "/v1/user-data", {"user": "team/zoé", "tenant": "tn_1"}, None),
    ),
    (
        "user erase tn_1 zoé --yes",
        ("DELETE", "/v1/user-data", {"user": "zoé", "tenant": "tn_1"}, None),
    ),
]


@pytest.mark.parametrize(("words", "expected"), REQUESTS)
def test_a_command_is_one_request(api, tmp_path, monkeypatch, capsys, words, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    assert run(*(words.split() if isinstance(words, str) else words)) == 0
    assert api.asked == [(*expected, f"Bearer {KEY}")]
    out, err = capsys.readouterr()
    assert "x" in out
    assert err == ""


@pytest.mark.parametrize(
    ("words", "path", "query"),
    [
        ("tenant list", "/admin/tenants", {"deleted": "false"}),
        ("price list --model m", "/admin/prices", {"model": "m"}),
        ("tenant list --deleted --limit 2", "/admin/tenants", {"deleted": "true", "limit": "2"}),
        ("app list --tenant tn_1", "/v1/apps", {"deleted": "false", "tenant": "tn_1"}),
        ("app list --all --deleted", "/admin/apps", {"deleted": "true"}),
        ("tenant list --name me", "/admin/tenants", {"deleted": "false", "name": "me"}),
        ("app list --name me", "/v1/apps", {"deleted": "false", "name": "me"}),
        ("app profile app_1 --history --limit 2", f"{APP}/profile/history", {"limit": "2"}),
        ("key list --app app_1 --offset 5", f"{APP}/keys", {"offset": "5"}),
        ("key list --tenant-id tn_1", "/admin/tenants/tn_1/keys", {}),
        ("key list --admin", "/admin/keys", {}),
        ("user list", "/admin/users", {}),
        (
            "user list --tenant tn_1 --blocked --user a",
            "/admin/users",
            {"tenant": "tn_1", "blocked": "true", "user": "a"},
        ),
    ],
)
def test_a_list_is_one_request(api, words, path, query):
    api.answer = (200, {"items": [], "total": 0, "limit": 100, "offset": 0})
    assert run(*words.split()) == 0
    assert [asked[:3] for asked in api.asked] == [("GET", path, query)]


@pytest.mark.parametrize(
    ("flags", "changed"),
    [
        ("--unblock", {"blocked": False}),
        ("--rpm 7 --weight 1", {"rpm": 7, "weight": 1}),
        ("--rpm none --block", {"rpm": None}),
        ("--priority-weight none", {"priority_weight": None}),
        (
            "--block --on-block cancel_all --reason flood",
            {"on_block": "cancel_all", "reason": "flood"},
        ),
        (
            "--rpm-limit 5",
            {
                "contract": {
                    "rpm_limit": 5,
                    "soft_budget": 0.5,
                    "soft_end": "finish_runs",
                    "budget_duration": "1d",
                }
            },
        ),
        ("--soft-budget none --budget-duration none", {"contract": {}}),
    ],
)
def test_setting_a_user_keeps_other_fields(api, flags, changed):
    api.answer = (200, USER)
    assert run("user", "set", "tn_1", "a/b", *flags.split()) == 0
    read, put = api.asked
    assert read[:2] == ("GET", "/admin/users/tn_1/a/b")
    assert put[:2] == ("PUT", "/admin/users/tn_1/a/b")
    kept = {name: value for name, value in USER["contract"].items() if value is not None}
    own = {name: USER[name] for name in ("weight", "priority_weight", "rpm", "blocked")}
    assert put[3] == {**own, "contract": kept} | changed


def test_tables_are_readable(api, capsys):
    api.answer = (200, {"items": [TENANT], "total": 3, "limit": 1, "offset": 0})
    run("tenant", "list", "--limit", "1")
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "id    name  state   weight  contract",
        "tn_1  Acme  active  2       rpm_limit 5",
    ]
    assert err == "1 of 3; --offset 1 shows more\n"
    api.answer = (200, TENANT | {"suspended_at": "2026-01-01T00:00:00Z", "name": "A\x9bme"})
    run("tenant", "show", "tn_1")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["id", "tn_1"],
        ["name", "A?me"],
        ["weight", "2"],
        ["contract.rpm_limit", "5"],
        ["suspended_at", "2026-01-01T00:00:00Z"],
        ["deleted_at", "-"],
    ]


def test_json_is_the_raw_answer(api, capsys):
    api.answer = (200, TENANT)
    run("tenant", "show", "tn_1", "--json")
    assert json.loads(capsys.readouterr().out) == TENANT
    page = {"items": [TENANT], "total": 3, "limit": 1, "offset": 0}
    api.answer = (200, page)
    run("tenant", "list", "--json")
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == (page, "")


def test_a_new_key_is_printed_once(api, capsys):
    plain = "sk-fs-p-new"
    api.answer = (201, {"id": "key_1", "prefix": "sk-fs-p", "api_key": plain})
    for flags in ((), ("--json",)):
        run("key", "create", "--app", "app_1", *flags)
        out, err = capsys.readouterr()
        assert (out.count(plain), err) == (1, "")


@pytest.mark.parametrize(
    ("words", "param", "message", "printed"),
    [
        ("tenant set tn_1 --weight 200", "weight", "weight: not this", "--weight: not this"),
        ("tenant set tn_1 --weight 2", None, "weight: not this", "weight: not this"),
        (
            "tenant set tn_1 --rpm-limit 0",
            "contract.rpm_limit",
            "contract.rpm_limit: Input should be greater",
            "--rpm-limit: Input should be greater",
        ),
        (
            "app set app_1 --user-max-budget 5",
            "user_contract.max_budget",
            "user_contract.max_budget: a budget needs a budget_duration",
            "--user-max-budget: a budget needs a --user-budget-duration",
        ),
        (
            "app set app_1 --user-rpm 0",
            "limits.user_rpm",
            "limits.user_rpm: Input should be greater",
            "--user-rpm: Input should be greater",
        ),
        (
            "app register x --profile p.json",
            "profile.stages.0",
            "profile.stages.0: output_tokens of a stage is -1.0",
            "--profile: stages.0: output_tokens of a stage is -1.0",
        ),
        (
            "tenant create Acme",
            "name",
            "tenant tn_2 has this name; choose another name, or create a key of that tenant with"
            " POST /admin/tenants/tn_2/keys",
            "tenant tn_2 has this name; choose another name, or create a key of that tenant",
        ),
        (
            "app list",
            "tenant",
            "an admin key names a tenant here: ?tenant=tn_...",
            "an admin key names a tenant here: --tenant NAME",
        ),
        ("webhook set wh_1 --to x", "url", "url: its host is private", "--to: its host is private"),
        ("key rotate --admin", "grace_s", "grace_s: too long", "--grace: too long"),
    ],
)
def test_a_rejection_names_flags(
    api, tmp_path, monkeypatch, capsys, words, param, message, printed
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.json").write_text("{}")
    error = {"message": message, "param": param, "code": "invalid_value"}
    api.answer = (400, {"error": error})
    assert run(*words.split()) == 1
    out, err = capsys.readouterr()
    command = " ".join(words.split()[:2])
    assert (out, err) == ("", f"fairserve {command}: {printed}\n")


ITEM = {"id": "x_1", "name": "Acme", "url": "https://a.org/", "revoked_at": None}
LATER = "2199-01-01T00:00:00Z"
NAMED = {
    "tenant": "Acme",
    "app": "chat",
    "key": "ci",
    "webhook": "https://a.org/",
    "price": "small",
}
IDS = {"tenant": "tn_1", "app": "app_1", "key": "key_1", "webhook": "wh_1", "price": "price_1"}
OBJECTS = [
    dict.fromkeys(("name", "url", "model"), name)
    | {"id": IDS[kind], "revoked_at": None, "valid_from": LATER}
    for kind, name in NAMED.items()
]
"""One object of each kind, of which each list has all."""


@pytest.mark.parametrize(("noun", "command"), every_command(), ids=str)
def test_an_object_is_named_by_its_name_or_its_id(api, tmp_path, monkeypatch, noun, command):
    """The last request is the same; before it, each name is looked up."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    api.answer = (200, USER | {"items": OBJECTS, "total": len(OBJECTS), "offset": 0})
    for by_id, by_name in zip(
        forms_of(noun, command, IDS), forms_of(noun, command, NAMED), strict=True
    ):
        api.asked = []
        assert run(*by_id) == 0
        asked, api.asked = api.asked, []
        assert run(*by_name) == 0
        assert api.asked[-1] == asked[-1], by_name
        names = sum(word in NAMED.values() for word in by_name)
        assert len(api.asked) == len(asked) + names, by_name


@pytest.mark.parametrize(
    ("words", "items", "asked"),
    [
        (
            "key change Acme --role viewer",
            [ITEM | {"id": "x_0", "revoked_at": "2026-01-01T00:00:00Z"}, ITEM],
            ["/admin/keys", "/admin/keys/x_1"],
        ),
        (
            "price delete Acme",
            [
                {"id": "x_1", "model": "Acme", "valid_from": LATER},
                {"id": "x_0", "model": "Acme", "valid_from": "2020-01-01T00:00:00Z"},
            ],
            ["/admin/prices", "/admin/prices/x_1"],
        ),
    ],
)
def test_a_name_is_that_of_a_valid_key_and_of_a_later_price(api, words, items, asked):
    api.answer = (200, {"items": items, "total": len(items), "limit": 100, "offset": 0})
    assert run(*words.split()) == 0
    assert [path for _, path, *_ in api.asked] == asked


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([ITEM | {"name": "Acme & Co"}], "there is no tenant 'Acme'; see fairserve tenant list"),
        ([ITEM, ITEM | {"id": "x_2"}], "2 objects are a tenant 'Acme': x_1, x_2; name one id"),
    ],
)
def test_a_name_is_that_of_exactly_one_object(api, capsys, items, message):
    api.answer = (200, {"items": items, "total": len(items)})
    assert run("tenant", "restore", "Acme") == 1
    assert capsys.readouterr().err == f"fairserve tenant restore: {message}\n"
    ((_, _, query, *_),) = api.asked
    assert query["deleted"] == "true"


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (502, b"<html>bad gateway</html>", "the server answers 502"),
        (500, {"error": "no object"}, "the server answers 500"),
        (200, b"<html>", "does not answer with JSON"),
    ],
)
def test_invalid_answers_are_reported(api, capsys, status, answer, message):
    api.answer = (status, answer)
    assert run("tenant", "list") == 1
    assert message in capsys.readouterr().err


def test_the_key_is_not_sent_to_the_target_of_a_redirect(api, capsys):
    with ScriptedApi() as elsewhere:
        api.answer = (307, b"")
        api.headers = {"Location": f"{elsewhere.url}/admin/tenants"}
        assert run("tenant", "list") == 1
        assert elsewhere.asked == []
    assert f"answers 307, elsewhere: {elsewhere.url}" in capsys.readouterr().err


def test_an_unreachable_server_is_reported(api, capsys):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        assert run("tenant", "list", "--url", url) == 1
    assert f"{url} does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "tenant",
        "tenant destroy tn_1",
        "tenant create",
        "tenant set tn_1",
        "tenant set tn_1 --rpm-limit many",
        "tenant set tn_1 --weight heavy",
        "tenant show tn_1 --key secret",
        "tenant list --url ftp://host",
        "tenant list --url file:///etc/passwd",
        "tenant list --key-file missing",
        "app register chat",
        "app register chat --profile missing.json",
        "app register chat --profile broken.json",
        "app set app_1 --user-rpm-lim 5",
        "key create",
        "key create --app app_1 --tenant-id tn_1",
        "user set tn_1 zoé",
        "user set tn_1 zoé --block --unblock",
        "webhook set wh_1 --disable --enable",
        "user erase tn_1 zoé",
    ],
)
def test_wrong_usage_sends_no_request(api, tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    assert run(*words.split()) == 2
    out, err = capsys.readouterr()
    assert (api.asked, out) == ([], "")
    assert err.startswith("fairserve ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("key", [None, "", "  ", "two words\nlines", "schlüssel", "k" * 300])
def test_an_invalid_key_is_rejected_without_being_printed(api, monkeypatch, capsys, key):
    if key is None:
        monkeypatch.delenv("FAIRSERVE_API_KEY")
    else:
        monkeypatch.setenv("FAIRSERVE_API_KEY", key)
    assert run("tenant", "list") == 2
    err = capsys.readouterr().err
    assert "key" in err
    assert not (key and key.strip()) or key not in err
    assert api.asked == []


def test_a_key_file_takes_precedence_and_no_error_prints_a_key(api, tmp_path, capsys):
    file = tmp_path / "key"
    file.write_text("sk-fs-a-of-the-file\n")
    assert run("tenant", "show", "tn_1", "--key-file", file) == 0
    assert api.asked[0][4] == "Bearer sk-fs-a-of-the-file"
    for status in (400, 401, 500):
        api.answer = (status, {"error": {"message": "no"}})
        run("tenant", "show", "tn_1")
        run("tenant", "show", "tn_1", "--key-file", file)
    file.write_bytes(b"\xff")
    assert run("tenant", "show", "tn_1", "--key-file", file) == 2
    printed = "".join(capsys.readouterr())
    assert KEY not in printed
    assert "of-the-file" not in printed


def test_an_export_file_is_private(api, tmp_path, capsys):
    out = tmp_path / "alice.json"
    api.answer = (200, {"user": "zoé"})
    assert run("user", "export", "tn_1", "zoé", "--out", out) == 0
    assert json.loads(out.read_text(encoding="utf-8")) == {"user": "zoé"}
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert capsys.readouterr().out == ""
    assert run("user", "export", "tn_1", "zoé", "--out", tmp_path / "no" / "a.json") == 2
    assert "cannot be written" in capsys.readouterr().err


def test_no_cell_is_cut_or_wrapped_without_a_terminal(api, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    name = " ".join(f"part{number}" for number in range(200)) + " [bold]:smile:"
    api.answer = (200, {"items": [TENANT | {"name": name}], "total": 1, "limit": 1, "offset": 0})
    run("tenant", "list")
    header, row = capsys.readouterr().out.splitlines()
    assert row == f"tn_1  {name}  active  2       rpm_limit 5"
    assert header.split() == ["id", "name", "state", "weight", "contract"]


def test_every_command_has_help(capsys):
    for noun in COMMANDS:
        for name, command in getattr(get_command(COMMANDS[noun].load()), "commands", {}).items():
            assert run(noun, name, "--help") == 0
            assert f"Usage: fairserve {noun} {name}" in capsys.readouterr().out
            assert command.help, (noun, name)
            for parameter in command.params:
                assert "[" not in (parameter.help or ""), "Rich would take it for a style"
