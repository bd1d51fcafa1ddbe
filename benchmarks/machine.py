"""The machine and the revision of the code on which figures are measured."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import fairserve


def machine(packages: Iterable[str] = ("fairserve", "torch", "openai")) -> dict[str, Any]:
    """Return processor, usable cores, revision and versions of packages, as plain JSON values."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": cores,
        "python": platform.python_version(),
        "revision": revision(),
        "versions": {name: _version(name) for name in packages},
    }


def revision() -> str:
    """Return the commit of the code, with ``+`` if its files differ; empty outside of a checkout."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    checkout = Path(fairserve.__file__).parents[2]
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=checkout, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
