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
def wheel(tmp_path_factory):
    """Return a wheel built from a copy, so that no build folder is left in the tree."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
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
    # The command that pip and build call; they would install the build's requirements first.
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-P", "-c", build, out], cwd=copy, check=True, capture_output=True
    )
    return next(Path(out).glob("fairserve-*.whl"))


def test_every_module_is_in_the_wheel(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        f"fairserve/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".mako"} and "scripts" not in path.parts
    }
    assert sources
    assert sources <= names
    assert {"fairserve/py.typed", "fairserve/client.py", "fairserve/openai_calls.py"} <= names
    assert any(name.startswith("fairserve/migrations/versions/0001") for name in names)


def test_nothing_else_is_in_the_wheel(wheel):
    for name in zipfile.ZipFile(wheel).namelist():
        assert name.startswith(("fairserve/", "fairserve-")), name
        assert "__pycache__" not in name
        assert "/tests/" not in name
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
