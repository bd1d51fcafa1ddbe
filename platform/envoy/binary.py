"""The Envoy binary of the extra ``envoy``, and its check of a configuration."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

VALIDATE_S = 60.0
MAX_REASON_CHARS = 2_000


class EnvoyError(Exception):
    """Envoy is missing, rejects its configuration, or does not start."""


def envoy_path() -> Path:
    """Return the binary. Raises EnvoyError if the extra is not installed."""
    found = importlib.util.find_spec("envoy")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        path = Path(folder) / "_bin" / "envoy"
        if path.is_file():
            return path
    raise EnvoyError("Envoy is not installed: pip install 'fairserve[server,envoy]'")


async def validate(configuration: Path) -> None:
    """Let Envoy check a configuration file. Raises EnvoyError with its reason."""
    child = await asyncio.create_subprocess_exec(
        *(str(envoy_path()), "--mode", "validate", "-c", str(configuration)),
        *("--log-level", "critical", "--log-format", "%v"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(VALIDATE_S):
            _, reason = await child.communicate()
    except TimeoutError:
        raise EnvoyError(f"Envoy did not check {configuration} within {VALIDATE_S:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode != 0:
        text = reason.decode("utf-8", "replace").strip()[-MAX_REASON_CHARS:]
        raise EnvoyError(f"Envoy rejects its configuration {configuration}: {text}")
