"""Test the command line: help for all commands, one clear line for an error, and exit code 2."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fairserve.platform.db.schema import SchemaError, required_revision
from fairserve.platform.server import cli

ROOT = Path(__file__).resolve().parents[4]
VISITOR = '''
def greet(argv):
    """Greet 100% of them.

    Twice.
    """
    print(argv)
'''
LABORATORY = ["bench", "demo", "reproduce", "simulate"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs a distribution with the given entry points only."""

    def install(name, commands):
        site = tmp_path / name
        folder = site / f"{name}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"{command} = {value}" for command, value in commands.items()]
        (folder / "entry_points.txt").write_text("\n".join([f"[{cli.GROUP}]", *lines, ""]))
        monkeypatch.syspath_prepend(site)
        return site

    return install


@pytest.fixture
def laboratory(installed):
    """Install the entry points of pyproject.toml, whatever else is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    commands = project["entry-points"][cli.GROUP]
    assert sorted(commands) == LABORATORY
    return installed("fairserve", commands)


def run(capsys, *arguments):
    try:
        code = cli.main(list(arguments))
    except SystemExit as exit_:
        code = exit_.code or 0
    out, err = capsys.readouterr()
    return code, out, err


def test_version_and_help_are_printed(capsys, laboratory):
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("fairserve ")
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for command in (*cli.COMMANDS, *LABORATORY):
        assert re.search(rf"\n    {command}\s+[a-z]", out), command
    assert "replay a trace in virtual time and compare systems\n" in out
    assert "\n    control " not in out
    assert run(capsys, "serve", "--help")[0] == 0
    assert "FAIRSERVE_DATABASE_URL" in run(capsys, "db", "upgrade", "--help")[1]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nothing"],
        ["serve", "--nothing"],
        ["serve", "--por", "1"],
        ["serve", "--port", "x"],
        ["serve", "--system", "nothing"],
        ["serve", "--set", "nothing"],
        ["serve", "--set", "nothing=1"],
        ["serve", "--local-scheduler", "nothing"],
        ["db"],
        ["db", "downgrade"],
        ["db", "current", "--database-url", "mysql://u:hunter2@h/d"],
        ["db", "upgrade", "--database-url", "postgresql://u:hunter2@127.0.0.1:1/d"],
    ],
)
def test_an_error_is_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch, arguments):
    monkeypatch.setenv("FAIRSERVE_DATA_DIR", str(tmp_path))
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("fairserve")
    assert "hunter2" not in err


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["serve", "--prot", "1"], "serve: .*--prot 1; did you mean --port?"),
        (["serve", "--workes=2"], "serve: .*--workes=2; did you mean --workers?"),
        (["serve", "--no-konsole"], "serve: .*--no-konsole; did you mean --no-console?"),
        (["db", "upgrade", "--data-dri", "x"], "db upgrade: .*; did you mean --data-dir?"),
        (["serve", "--nothing-like-it"], r"serve: unrecognized arguments: \S+ \(see"),
    ],
)
def test_an_unknown_flag_suggests_a_known_one(capsys, arguments, advice):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert re.match(f"fairserve {advice}", err)


def test_the_database_commands(capsys, tmp_path):
    here = ["--data-dir", str(tmp_path)]
    assert "there is no database" in run(capsys, "db", "current", *here)[2]
    upgraded = f"schema revision {required_revision()}\n"
    assert run(capsys, "db", "upgrade", *here) == (0, upgraded, "")
    assert run(capsys, "db", "upgrade", *here) == (0, upgraded, "")
    code, _, err = run(capsys, "db", "downgrade", str(required_revision()), *here)
    assert code == 2
    assert "allowed: base" in err
    assert f"revision {required_revision()}, " in run(capsys, "db", "current", *here)[1]
    assert run(capsys, "db", "downgrade", "base", *here) == (0, "schema revision 0\n", "")
    assert "revision 0, " in run(capsys, "db", "current", *here)[1]


@pytest.mark.parametrize("command", ["worker", "usage", "price"])
def test_commands_get_their_own_arguments(command, monkeypatch):
    got = []
    module = cli.COMMANDS[command].module
    fake = type(sys)(module)
    fake.main = lambda argv: got.append(argv) or 7
    monkeypatch.setitem(sys.modules, module, fake)
    assert cli.main([command, "--help", "x"]) == 7
    name = [command] if command == "price" else []
    assert got == [[*name, "--help", "x"]]


@pytest.mark.parametrize("command", LABORATORY)
def test_commands_of_the_laboratory_run(command, laboratory, capsys):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert out.startswith(f"usage: fairserve {command}")


def test_an_installed_package_adds_a_command(installed, capsys):
    site = installed("visitor", {"greet": "visitor:greet", "serve": "visitor:greet"})
    (site / "visitor.py").write_text(VISITOR)
    assert run(capsys, "greet", "--loud", "you") == (0, "['--loud', 'you']\n", "")
    out = run(capsys, "--help")[1]
    assert re.search(r"\n    greet\s+greet 100% of them\n", out)
    assert re.search(r"\n    serve\s+run the platform\n", out)


def test_a_command_that_cannot_be_loaded_is_named_in_the_help(installed, capsys):
    installed("broken", {"broken": "nowhere_at_all:main"})
    out = run(capsys, "--help")[1]
    assert re.search(r"\n    broken\s+cannot be loaded: No module named 'nowhere_at_all'", out)
    code, _, err = run(capsys, "broken")
    assert (code, err.count("\n")) == (2, 1)
    assert "nowhere_at_all is not installed" in err


def test_the_command_comes_first(capsys):
    code, _, err = run(capsys, "--", "serve", "--help")
    assert (code, err.count("\n")) == (2, 1)


def test_serve_gets_the_settings(monkeypatch, capsys):
    got = []
    fake = type(sys)("fairserve.platform.server.process")
    fake.serve = lambda settings: got.append(settings) or 0
    monkeypatch.setitem(sys.modules, "fairserve.platform.server.process", fake)
    assert cli.main(["serve", "--port", "0", "--set", "feed_window=0.1"]) == 0
    (settings,) = got
    assert settings.server.port == 0
    assert settings.tuning.system_options == {"feed_window": 0.1}

    def refuse(settings):
        raise SchemaError("run `fairserve db upgrade`")

    fake.serve = refuse
    assert run(capsys, "serve") == (2, "", "fairserve: run `fairserve db upgrade`\n")


def test_the_help_imports_no_server(laboratory):
    code = (
        "import sys; from fairserve.platform.server import cli; cli.parser().format_help();"
        "from fairserve.platform.server.commands import serve; serve.parser().format_help();"
        "print(sorted({'fastapi', 'torch', 'sqlalchemy', 'transformers'} & sys.modules.keys()))"
    )
    path = os.pathsep.join([str(laboratory), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout == "[]\n"
