import re
import pytest
from command_words import every_command, forms_of
from served_app import served
from typer.main import get_command
from fairserve.platform.server import cli
from fairserve.platform.server.cli import main

OF_HTTP = re.compile(r"\b(POST|PUT|PATCH|GET|DELETE|HTTP)\b|/(v1|admin)\b|\b[45]\d\d\b|\?\w+=|_id\b")
UNKNOWN = {"tenant": "tn_" + "0" * 32, "app": "app_" + "0" * 32, "key": "key_" + "0" * 32, "webhook": "wh_" + "0" * 32, "price": "price_" + "0" * 32}
NOBODY = {kind: f"no {kind}" for kind in UNKNOWN}


@pytest.fixture
def server(management, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profile.json").write_text('{"stages": [{"input_tokens": 1, "output_tokens": 2}]}')
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("FAIRSERVE_API_KEY", management.admin_key)
    with served(management.client) as url:
        monkeypatch.setenv("FAIRSERVE_URL", url)
        yield management


def run(words, capsys):
    try:
        code = main([str(w) for w in words])
    except SystemExit as e:
        code = e.code
    out, err = capsys.readouterr()
    return code, err or out[:60]


def test_explore(server, capsys, monkeypatch):
    lines = []
    tenant = server.new_tenant("acme")
    server.new_app(tenant, name="chat")
    for noun, name in every_command():
        for objects in (UNKNOWN, NOBODY):
            for words in forms_of(noun, name, objects):
                lines.append((words, *run(words, capsys)))
        known = {**UNKNOWN, "tenant": "acme", "app": "chat"}
        params = get_command(cli.COMMANDS[noun].load()).commands[name].params
        for p in params:
            if p.param_type_name != "option" or p.is_flag or p.name in ("url", "key_file", "tenant", "tenant_id", "app", "profile"):
                continue
            for bad in ("-1", "x" * 3000, "none", "\x00"):
                words = forms_of(noun, name, known)[-1] + [p.opts[0], bad]
                lines.append(([*words[:-1], bad[:5]], *run(words, capsys)))
    with capsys.disabled():
        for words, code, err in lines:
            print(code, " ".join(map(str, words)), "=>", err.strip()[:230], "  <<<<< HTTP" if OF_HTTP.search(err) else "")
