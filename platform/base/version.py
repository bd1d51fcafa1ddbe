"""Version of the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def product_version() -> str:
    """Return the version; ``unknown`` where the package is not installed."""
    try:
        return version("fairserve")
    except PackageNotFoundError:
        return "unknown"
