"""The wheel contains every module, the migrations and the templates, and nothing else."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [
    "interactions",
    "throttling",
    "scheduling",
    "engine",
    "platform",
    "benchmarks",
    "migrations",
]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return a copy of the tree, so that no build folder is left in it."""
    copy = tmp_path_factory.mktemp("source")
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    for name in filter(None, tracked):
        source, target = ROOT / name, copy / name
        if name.startswith("tests/") or not (source.is_symlink() or source.is_file()):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(os.readlink(source))
        else:
            target.write_bytes(source.read_bytes())
    return copy


def built(folder, out):
    """Build the wheel of a folder in ``out`` and return it."""
    # The command that pip and build call; they would install the build's requirements first.
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-P", "-c", build, out], cwd=folder, check=True, capture_output=True
    )
    (wheel,) = Path(out).glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def client_wheel(source, tmp_path_factory):
    return built(source / "src/fairserve_client", tmp_path_factory.mktemp("client_wheel"))


@pytest.fixture(scope="module")
def wheel(source, client_wheel, tmp_path_factory):
    """The server's wheel, built after the client's, whose build folder it must not hold."""
    return built(source, tmp_path_factory.mktemp("wheel"))


def test_every_module_is_in_the_wheel(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        f"fairserve/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".mako", ".toml"} and "scripts" not in path.parts
    }
    assert sources
    assert sources <= names
    assert {"fairserve/py.typed", "fairserve/client.py", "fairserve/_client/runs.py"} <= names
    assert any(name.startswith("fairserve/migrations/versions/0106") for name in names)


def test_nothing_else_is_in_the_wheel(wheel):
    for name in zipfile.ZipFile(wheel).namelist():
        assert name.startswith(("fairserve/", "fairserve-")), name
        assert "__pycache__" not in name
        assert "/tests/" not in name
        assert "/build/" not in name
        assert not name.startswith(("fairserve/benchmarks/results", "fairserve/benchmarks/scripts"))


def test_the_installed_wheel_finds_the_migrations_and_the_standard_library(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    program = (
        "import platform; platform.machine(); "
        "import fairserve.scheduling.registry as r; assert 'fairserve' in r.SYSTEMS; "
        "import sys; assert r.__file__.startswith(sys.argv[1]), r.__file__; "
        "from fairserve.platform.server.cli import main; "
        "sys.exit(main(['db', 'upgrade', '--database-url', 'sqlite:///' + sys.argv[2]]))"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(site), str(tmp_path / "new.sqlite3")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        check=True,
    )
    assert (tmp_path / "new.sqlite3").stat().st_size > 0


def test_the_wheels_of_server_and_client_share_no_file(wheel, client_wheel):
    server, client = (set(zipfile.ZipFile(each).namelist()) for each in (wheel, client_wheel))
    assert not server & client
    modules = {path.name for path in (ROOT / "src/fairserve_client").glob("*.py")} | {"py.typed"}
    assert {name for name in client if ".dist-info/" not in name} == {
        f"fairserve_client/{name}" for name in modules
    }
    assert {f"fairserve/_client/{name}" for name in modules} <= server


@pytest.mark.parametrize("both", [False, True], ids=["the server alone", "both"])
def test_one_process_has_one_client_whichever_wheels_are_installed(
    wheel, client_wheel, tmp_path, both
):
    for each in [wheel, client_wheel][: 1 + both]:
        zipfile.ZipFile(each).extractall(tmp_path)
    program = (
        "import sys, fairserve.client; import importlib.util as u;"
        "client = sys.modules.get('fairserve_client') or sys.modules['fairserve._client'];"
        "assert client.__file__.startswith(sys.argv[1]), client.__file__;"
        "assert fairserve.client.current_run is client.current_run;"
        "print(u.find_spec('fairserve_client') is not None, 'fairserve._client' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-S", "-c", program, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.split() == [str(both), str(not both)], run.stderr
