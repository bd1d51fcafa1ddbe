"""The gateways that are measured, each with its processes, and what stands in for one: no gateway.

FairServe runs with its default settings: embedded database, journal, limits, fairness and run tracking.
The model has no tokenizer, so that prompts are estimated: `fairserve bench tokenising`
measures that. LiteLLM runs as its documentation recommends for production, with one process, a
master key and without a database.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

from fairserve.benchmarks.bench.gateway.calls import MODEL
from fairserve.benchmarks.bench.gateway.processes import (
    BenchProcess,
    BenchStartError,
    Tree,
    free_port,
    wait_until,
)

START_S = 180.0
EMBEDDED: Final = "embedded"
"""FairServe in one process, as ``fairserve serve`` starts it."""
LITELLM: Final = "litellm"
DIRECT: Final = "direct"
_CLI = (sys.executable, "-m", "fairserve.platform.server.cli")
_CONNECTIONS = "8000"
_PROFILE = {
    "stages": [{"input_tokens": 300, "output_tokens": 100}],
    "calls_per_interaction": 1,
}


class Gateway(Protocol):
    """A running gateway in front of the stub worker."""

    name: str
    url: str
    key: str
    """The key of its clients."""

    @property
    def tree(self) -> Tree | None:
        """Return its processes; None if it has none."""
        ...

    def restart(self) -> bool:
        """Start it again if its process has crashed and that is not ours; return whether it did."""
        ...

    def stop(self) -> None:
        """Stop its processes."""
        ...


class Direct:
    """No gateway: the stub worker itself."""

    name: str = DIRECT
    tree: Tree | None = None

    def __init__(self, worker_url: str) -> None:
        """Send calls to the worker."""
        self.url, self.key = worker_url, "none"

    def restart(self) -> bool:
        """Do nothing."""
        return False

    def stop(self) -> None:
        """Do nothing."""


class _Started:
    """A gateway that is a process tree of ours, in front of the stub worker."""

    name: str
    key: str

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        url: str,
        ready: str,
        cores: Collection[int],
        env: Mapping[str, str],
    ) -> None:
        """Start it, wait until the path ``ready`` answers, and set it up. Raises StartError."""
        self.url, self._ready = url, url + ready
        self._start = partial(BenchProcess, command, log, cores=cores, env=env)
        self._begin()

    def _begin(self) -> None:
        """Start its process, wait until it is ready, and set it up. Raises StartError."""
        self._process = self._start()
        try:
            wait_until(lambda: _answers(self._ready), self._process, START_S)
            self._set_up()
        except BaseException:
            self.stop()
            raise

    def _set_up(self) -> None:
        """Do nothing: a subclass may need more than to be ready."""

    @property
    def tree(self) -> Tree:
        """Return its processes."""
        return self._process.tree

    def restart(self) -> bool:
        """Do nothing: a crash of ours is an error."""
        return False

    def stop(self) -> None:
        """Stop it."""
        self._process.stop()


class FairServe(_Started):
    """``fairserve serve`` with a database and a data folder of its own."""

    def __init__(
        self,
        folder: Path,
        worker_url: str,
        cores: Collection[int],
        *,
        name: str = EMBEDDED,
        settings: Mapping[str, str] = MappingProxyType({}),
        admin_key: str = "",
        **more_flags: str,
    ) -> None:
        """Start it, and wait until it serves the worker. Raises StartError.

        ``settings`` are more variables of its environment. ``admin_key`` is that of servers which share
        a database.
        """
        self.name = name
        self._admin_key = admin_key or new_admin_key()
        port = free_port()
        self.data = folder / f"{name}-data"
        """Its data folder."""
        flags = {
            "port": str(port),
            "data-dir": str(self.data),
            "worker-urls": worker_url,
            "log-level": "warning",
            "max-connections-per-address": _CONNECTIONS,
            **{name.replace("_", "-"): value for name, value in more_flags.items()},
        }
        environment = {
            **{name: value for name, value in os.environ.items() if "FAIRSERVE" not in name},
            "FAIRSERVE_ADMIN_KEY": self._admin_key,
            "HF_HUB_OFFLINE": "1",
            **settings,
        }
        arguments = [part for name, value in flags.items() for part in (f"--{name}", value)]
        super().__init__(
            [*_CLI, "serve", *arguments],
            folder / f"{name}.log",
            url=f"http://127.0.0.1:{port}",
            ready="/health/readiness",
            cores=cores,
            env=environment,
        )

    def _set_up(self) -> None:
        """Create a tenant and its app, whose key the clients use."""
        self.key = self.new_key(self.name)

    def new_key(self, name: str) -> str:
        """Create a tenant and its app; return the app's key. Raises StartError."""
        tenant = _asked(self.url + "/admin/tenants", self._admin_key, {"name": name})
        app = {"name": name, "profile": _PROFILE}
        return str(_asked(self.url + "/v1/apps", tenant["api_key"], app)["api_key"])

    def cluster(self) -> dict[str, Any]:
        """Return the state of models and workers. Raises StartError."""
        return _asked(self.url + "/admin/cluster", self._admin_key)


class LiteLlm(_Started):
    """LiteLLM's proxy from an environment of its own."""

    name = LITELLM

    def __init__(
        self, environment: Path, folder: Path, worker_url: str, cores: Collection[int]
    ) -> None:
        """Start it, and wait until it is ready. Raises StartError."""
        self.key = "sk-" + secrets.token_urlsafe(32)
        port = free_port()
        config = folder / "litellm.json"  # JSON is YAML
        config.write_text(json.dumps(litellm_config(worker_url)), encoding="utf-8")
        command = [environment / "bin" / "litellm", "--config", config, "--host", "127.0.0.1"]
        command += ["--port", str(port), "--num_workers", "1", "--telemetry", "False"]
        settings = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "LITELLM_MASTER_KEY": self.key,
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # the current one is fetched from the internet
        }
        super().__init__(
            list(map(str, command)),
            folder / "litellm.log",
            url=f"http://127.0.0.1:{port}",
            ready="/health/liveliness",
            cores=cores,
            env=settings,
        )

    def restart(self) -> bool:
        """Start it again if its process has crashed; return whether it did. Raises StartError."""
        if self._process.process.poll() is None:
            return False
        self.stop()
        self._begin()
        return True


def new_admin_key() -> str:
    """Return an administrator's key."""
    return "sk-fs-a-" + secrets.token_urlsafe(32)


def litellm_config(worker_url: str) -> dict[str, Any]:
    """Return the configuration: the stub as a vLLM server, and no logging of calls."""
    parameters = {
        "model": f"hosted_vllm/{MODEL}",
        "api_base": f"{worker_url}/v1",
        "api_key": "none",
    }
    return {
        "model_list": [{"model_name": MODEL, "litellm_params": parameters}],
        "litellm_settings": {"set_verbose": False, "json_logs": True, "request_timeout": 600},
        "general_settings": {"master_key": "os.environ/LITELLM_MASTER_KEY"},
    }


def litellm_version(environment: Path) -> str:
    """Return the version of LiteLLM in an environment. Raises StartError if there is none."""
    python = environment / "bin" / "python"
    script = "from importlib.metadata import version; print(version('litellm'))"
    try:
        done = subprocess.run(  # noqa: S603
            [python, "-c", script], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise BenchStartError(
            f"{environment} has no LiteLLM; `make litellm` makes .venv-litellm"
        ) from error
    return done.stdout.strip()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except OSError:
        return False


def _asked(url: str, key: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the object that answers a GET, or a POST of ``body``. Raises StartError."""
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            found: dict[str, Any] = json.loads(answer.read())
            return found
    except urllib.error.HTTPError as error:
        raise BenchStartError(f"{url} answers {error.code}: {error.read(300)!r}") from error
