"""A server of `pip install 'fairserve[server]'` alone, which has no torch."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import httpx
import pytest
from gateway_server import ChildServer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from scripted_worker import ScriptedWorker

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

HIDE = """
import sys
from importlib.machinery import PathFinder

HIDDEN = frozenset({names!r})


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is None and name in HIDDEN:
            return None
        return PathFinder.find_spec(name, path, target)

    find_distributions = PathFinder.find_distributions
    invalidate_caches = PathFinder.invalidate_caches


sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


def closure(requirements):
    """Return the distributions that requirements install, each with its own requirements."""
    found, todo = {"fairserve"}, [(Requirement(each), ("",)) for each in requirements]
    done = set()
    while todo:
        requirement, extras = todo.pop()
        wanted = any(
            requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            for extra in extras
        )
        name = canonicalize_name(requirement.name)
        key = name, tuple(sorted(requirement.extras))
        if not wanted or key in done:
            continue
        done.add(key)
        found.add(name)
        try:
            needs = distribution(name).requires or ()
        except PackageNotFoundError:  # of another platform
            continue
        todo += ((Requirement(each), ("", *requirement.extras)) for each in needs)
    return found


@pytest.fixture(scope="module")
def only_server(tmp_path_factory):
    """Return the environment of a process that finds only packages of the extra."""
    wanted = closure([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["server"]])
    hidden = sorted(
        module
        for module, owners in packages_distributions().items()
        if not wanted & {canonicalize_name(each) for each in owners}
    )
    assert {"torch", "pytest", "celery"} <= set(hidden)
    folder = tmp_path_factory.mktemp("hidden")
    (folder / "sitecustomize.py").write_text(HIDE.format(names=hidden))
    return {"PYTHONPATH": f"{folder}:{ROOT / 'src'}"}


def test_calls_are_served(only_server, tmp_path):
    worker = ScriptedWorker()
    try:
        with ChildServer(tmp_path / "data", env=only_server, worker_urls=worker.url) as server:
            key = server.new_app()["api_key"]
            answer = httpx.post(
                f"{server.url}/v1/chat/completions",
                headers={"Authorization": f"Bearer {key}"},
                json={"model": "scripted", "messages": [{"role": "user", "content": "ok"}]},
                timeout=60,
            )
            assert answer.status_code == 200, answer.text
            assert httpx.get(f"{server.url}/console", timeout=60).status_code < 400
        assert not re.search("torch|Traceback|No module named", server.log(), re.I), server.log()
    finally:
        worker.close()


def test_a_server_with_workers_of_its_own_says_what_it_needs(only_server, tmp_path):
    env = {**only_server, "FAIRSERVE_ADMIN_KEY": ""}
    server = ChildServer(tmp_path / "data", env=env, start=False, workers=1)
    server.launch()
    assert server.process.wait(90) == 1
    assert "torch is not installed: pip install 'fairserve[torch]'" in server.log()
    assert server.log().count("fairserve worker: ") == 1, "it is started once"
    assert re.search("admin key .*: sk-fs-a-", server.log()), "the next start shows no key"
