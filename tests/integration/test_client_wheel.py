"""The client's wheel in an environment that has nothing else, in front of the whole server."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from served_app import served
from whole_server import WholeServer

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = '''
import importlib.util, json, sys, urllib.request
from fairserve_client import Run, agent, current_run, interaction

url, key = sys.argv[1:]
for name in ("numpy", "openai", "httpx", "fairserve"):
    assert importlib.util.find_spec(name) is None, name


class Client:
    """The least that is a client: it sends JSON with a key and its default headers."""

    def __init__(self, default_headers={}):
        self.headers = {"Authorization": f"Bearer {key}", **default_headers}

    def with_options(self, default_headers):
        return Client(default_headers)

    def request(self, cast_to, options):
        raise AssertionError("this program makes its calls itself")

    def post(self, path, *, body=None, cast_to=None, headers={}):
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self.headers, **headers}
        request = urllib.request.Request(url + "/v1" + path, data, headers, method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    delete = post


@agent("planner")
def plan():
    run = current_run()
    return run.client.post(
        "/chat/completions",
        body={"model": "scripted", "messages": [{"role": "user", "content": "plan"}]},
        headers=run.headers(agent="planner", call_id="plan"),
    )


with interaction(Client(), user="ann") as run:
    assert isinstance(run, Run)
    assert plan()["choices"]
print(run.id)
'''


def python(*arguments, **more):
    """Run a Python program and return its output."""
    run = subprocess.run(arguments, capture_output=True, text=True, check=False, **more)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """Python of an environment that has the client's wheel, installed without a network."""
    folder = tmp_path_factory.mktemp("client")
    source = shutil.copytree(ROOT / "src/fairserve_client", folder / "source")
    pip = (sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--quiet")
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PATH": "/usr/bin:/bin"}
    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    python(*pip, *build, env=offline)
    (wheel,) = folder.glob("fairserve_client-*.whl")
    venv.create(folder / "venv", with_pip=False)
    bare = folder / "venv/bin/python"
    python(*pip, "--python", str(bare), "install", str(wheel), env=offline)
    return bare


def test_a_program_makes_a_run_with_the_wheel_alone(bare_python, tmp_path):
    with WholeServer(tmp_path / "server") as server, served(server.client) as url:
        _, app = server.new_tenant_and_app("acme")
        run_id = python(
            bare_python, "-P", "-c", PROGRAM, url, app["api_key"], env={}, timeout=120
        ).strip()
        run = server.call(app["api_key"], "GET", f"/v1/interactions/{run_id}")
        graph = server.call(app["api_key"], "GET", f"/v1/interactions/{run_id}/graph")
    assert (run["state"], run["user"]) == ("complete", "ann")
    assert [(node["id"], node["agent"]) for node in graph["nodes"]] == [("plan", "planner")]
