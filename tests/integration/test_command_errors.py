"""Errors of every management command, as the server's answers cause them, name flags and objects."""

import re
import socket

import pytest
from command_words import every_command, forms_of
from served_app import served
from typer.main import get_command

from fairserve.platform.server import cli
from fairserve.platform.server.cli import main

OF_HTTP = re.compile(
    r"\b(POST|PUT|PATCH|GET|DELETE|HTTP)\b|/(v1|admin)\b|\b[45]\d\d\b|\?\w+=|\b[a-z]+_[a-z_]+\b"
)
"""Words of the API: methods, paths, statuses, queries and fields."""
VALUES = re.compile(r"'[^']*'|\b(tn|app|key|wh|price)_\w+")
IDS = {"tenant": "tn_", "app": "app_", "key": "key_", "webhook": "wh_", "price": "price_"}
UNKNOWN = {kind: prefix + "0" * 32 for kind, prefix in IDS.items()}
NAMES = {kind: f"no {kind}" for kind in IDS}
NOT_OF_A_BODY = {"url", "key_file", "profile", "tenant", "tenant_id", "app", "out"}
COMMANDS = [
    [str(word) for word in words]
    for noun, name in every_command()
    for words in forms_of(noun, name, NAMES)
]


@pytest.fixture
def server(management, monkeypatch, tmp_path):
    """Yield an application whose server and admin key the commands use."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profile.json").write_text('{"stages": [{"input_tokens": 1, "output_tokens": 2}]}')
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("FAIRSERVE_API_KEY", management.admin_key)
    with served(management.client) as url:
        monkeypatch.setenv("FAIRSERVE_URL", url)
        yield management


@pytest.fixture
def error_of(capsys):
    """Return a function that runs a command and returns its exit code and its one line of an error."""

    def run(words):
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:
            code = ended.code
        err = capsys.readouterr().err
        if code:
            assert err.startswith(f"fairserve {words[0]} {words[1]}: "), err
            assert err.count("\n") == 1, err
        return code, err.removeprefix(f"fairserve {words[0]} {words[1]}: ")

    return run


def of_http(err):
    """Return a word of the API in an error, besides its values and ids; None if there is none."""
    return OF_HTTP.search(VALUES.sub("", err))


def test_unknown_objects_are_named(server, error_of):
    """No list has the name, and the server does not find the id."""
    for noun, name in every_command():
        for objects in (NAMES, UNKNOWN):
            for words in forms_of(noun, name, objects):
                if not set(words) & set(objects.values()):
                    continue  # it names no object
                code, err = error_of(words)
                if objects is UNKNOWN and noun == "user" and name == "list":
                    continue  # a filter
                assert (code, of_http(err)) == (1, None), (words, err)
                assert "there is no " in err, (words, err)


def test_wrong_values_are_those_of_flags(server, error_of):
    """Each flag of a noun is tried with the first command that has it."""
    tenant = server.new_tenant("acme")
    app = server.new_app(tenant, name="chat")
    objects = UNKNOWN | {"tenant": tenant["id"], "app": app["id"]}
    seen, rejected = set(), 0
    for noun, name in every_command():
        for each in get_command(cli.COMMANDS[noun].load()).commands[name].params:
            tried = (noun, each.name) in seen or each.name in NOT_OF_A_BODY
            if each.param_type_name != "option" or each.is_flag or tried:
                continue
            seen.add((noun, each.name))
            for value in ("-1", "\x00"):
                code, err = error_of([*forms_of(noun, name, objects)[-1], each.opts[0], value])
                if code == 0 or "there is no such" in err or "has this name" in err:
                    continue  # the value is valid
                rejected += 1
                assert each.opts[0] in err.replace(value, ""), err
                assert not of_http(err), err
    assert rejected > 50


def test_a_wrong_key_is_that_of_a_file_or_the_environment(server, error_of, monkeypatch):
    monkeypatch.setenv("FAIRSERVE_API_KEY", "sk-fs-a-unknown")
    for words in COMMANDS:
        assert error_of(words) == (
            1,
            "the API key is unknown or revoked; it is that of --key-file or FAIRSERVE_API_KEY\n",
        )


def test_a_server_that_is_away_is_named(server, error_of, monkeypatch):
    with socket.socket() as bound:  # it does not listen
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("FAIRSERVE_URL", url)
        for words in COMMANDS:
            assert error_of(words) == (
                1,
                f"{url} does not answer: [Errno 111] Connection refused\n",
            )


def test_a_role_that_is_not_enough_is_named(server, error_of, monkeypatch):
    body = {"name": "x", "role": "viewer"}
    key = server.call(server.admin_key, "POST", "/admin/keys", body, status=201)
    monkeypatch.setenv("FAIRSERVE_API_KEY", key["api_key"])
    objects = UNKNOWN | {"tenant": server.new_tenant("acme")["id"]}
    found = {
        (noun, name): error_of(words)[1]
        for noun, name in every_command()
        for words in forms_of(noun, name, objects)
    }
    needed = {each for each in found.values() if "role" in each}
    assert needed == {
        f"this needs the role {role}; yours is viewer\n" for role in ("operator", "admin")
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tenant create acme", "has this name; choose another name"),
        ("app register chat --profile profile.json --tenant acme", "has this name"),
    ],
)
def test_a_conflict_names_what_is_there(server, error_of, words, message):
    server.new_app(server.new_tenant("acme"), name="chat")
    code, err = error_of(words.split())
    assert (code, of_http(err)) == (1, None), err
    assert message in err
