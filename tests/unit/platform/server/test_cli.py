"""Test the command line: help for all commands, one clear line for an error, and exit code 2."""

import fcntl
import gc
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import tomllib
from pathlib import Path

import pytest

from fairserve.platform.db.schema import SchemaError, required_revision
from fairserve.platform.server import cli, process

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
        assert re.search(rf"\n  {command}\s+[A-Z]", out), command
    assert "Replay a trace in virtual time and compare systems.\n" in out
    assert "\n  control " not in out
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
        ["serve", "--set", "feed_window=0.1"],
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
        (["serve", "--prot", "1"], "serve: .*--prot; did you mean --port?"),
        (["serve", "--workes=2"], "serve: .*--workes; did you mean --workers?"),
        (
            ["serve", "--no-trace-record"],
            "serve: .*--no-trace-record; did you mean --no-trace-recording?",
        ),
        (["db", "upgrade", "--data-dri", "x"], "db upgrade: .*; did you mean --data-dir?"),
        (["serve", "--qqq-qqq"], r"serve: No such option: \S+ \(see"),
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


@pytest.mark.parametrize("command", LABORATORY)
def test_commands_of_the_laboratory_run(command, laboratory, capsys):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert out.lower().startswith(f"usage: fairserve {command}")


def test_an_installed_package_adds_a_command(installed, capsys):
    site = installed("visitor", {"greet": "visitor:greet", "serve": "visitor:greet"})
    (site / "visitor.py").write_text(VISITOR)
    assert run(capsys, "greet", "--loud", "you") == (0, "['--loud', 'you']\n", "")
    out = run(capsys, "--help")[1]
    assert re.search(r"\n  greet\s+Greet 100% of them\.\n", out)
    assert re.search(r"\n  serve\s+Run the platform\.\n", out)


def test_a_command_that_cannot_be_loaded_is_named_in_the_help(installed, capsys):
    installed("broken", {"broken": "nowhere_at_all:main"})
    out = run(capsys, "--help")[1]
    assert re.search(r"\n  broken\s+Cannot be loaded: No module named 'nowhere_at_all'", out)
    code, _, err = run(capsys, "broken")
    assert (code, err.count("\n")) == (2, 1)
    assert "nowhere_at_all is not installed" in err


def test_an_interrupted_command_exits_with_130(installed, capsys):
    site = installed("stopper", {"stop": "stopper:stop"})
    (site / "stopper.py").write_text("def stop(argv):\n    raise KeyboardInterrupt\n")
    assert run(capsys, "stop") == (130, "", "")


@pytest.mark.parametrize("command", ["serve", "tenant", "usage"])
def test_completion_knows_the_flags_of_a_command(command, monkeypatch, capsys):
    monkeypatch.setenv("_FAIRSERVE_COMPLETE", "complete_bash")
    name = {"tenant": "tenant list ", "usage": "usage report "}.get(command, "serve ")
    monkeypatch.setenv("COMP_WORDS", f"fairserve {name}--l")
    monkeypatch.setenv("COMP_CWORD", str(len(name.split()) + 1))
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert out.split()[0] == {"serve": "--log-level"}.get(command, "--limit")


def test_serve_gets_the_settings(monkeypatch, capsys):
    got = []
    monkeypatch.setattr(process, "serve", lambda settings, **_: got.append(settings) or 0)
    assert cli.main(["serve", "--port", "0", "--set", "hold_s=9"]) == 0
    (settings,) = got
    assert gc.isenabled(), "it is off during the imports only"
    assert settings.server.port == 0
    assert settings.tuning.system_options == {"hold_s": 9}

    def reject(settings, **_):
        raise SchemaError("run `fairserve db upgrade`")

    monkeypatch.setattr(process, "serve", reject)
    assert run(capsys, "serve") == (2, "", "fairserve serve: run `fairserve db upgrade`\n")


def test_help_on_a_terminal_is_drawn_by_rich():
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
    command = [sys.executable, "-m", "fairserve.platform.server.cli", "db", "upgrade", "--help"]
    environment = {**os.environ, "TERM": "dumb"}
    subprocess.run(command, stdin=there, stdout=there, check=True, env=environment)
    os.close(there)
    shown = os.read(here, 1 << 16).decode()
    os.close(here)
    assert "─ Options ─" in shown
    assert "--database-url" in shown


def test_the_help_imports_no_server(laboratory):
    code = (
        "import sys; from fairserve.platform.server import cli; cli.main(['--help']);"
        "cli.main(['serve', '--help']); cli.main(['tenant', 'set', '--help']);"
        "cli.main(['worker', '--help']); cli.main(['worker', '--nothing']);"
        "print({'fastapi', 'torch', 'sqlalchemy', 'transformers', 'rich'} & sys.modules.keys())"
    )
    path = os.pathsep.join([str(laboratory), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout.endswith("\nset()\n")
