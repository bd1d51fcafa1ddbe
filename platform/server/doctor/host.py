"""Checks of this host: the limit of open files, and who can read the configuration file."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from fairserve.platform.server.configuration.checks import MASK, value_of
from fairserve.platform.server.configuration.sources import Layers
from fairserve.platform.server.doctor.finding import Finding, ok, warn
from fairserve.platform.server.http.descriptors import connections_within, descriptor_limit
from fairserve.platform.server.settings import FIELDS, Settings


def check_open_files(settings: Settings) -> Iterator[Finding]:
    """Yield whether the hard limit of open files allows the configured connections."""
    allowed, wanted = descriptor_limit(), settings.server.max_connections
    possible = connections_within(allowed)
    found = f"{allowed:,} are allowed, for {possible:,} client connections"
    if possible < wanted:
        yield warn("open files", found, f"raise the hard limit (ulimit -Hn) for {wanted:,}")
    else:
        yield ok("open files", f"{found} of the configured {wanted:,}")


def check_configuration(layers: Layers, settings: Settings) -> Iterator[Finding]:
    """Yield the configuration file in use, and whether others can read secrets in it."""
    file = layers.file
    if file is None:
        yield ok("settings", "valid; no configuration file")
        return
    secret = [
        name for name in file.settings if name in FIELDS and MASK in str(value_of(settings, name))
    ]
    if secret and stat.S_IMODE(file.path.stat().st_mode) & 0o077:
        what = f"others can read {', '.join(secret)} in {file.path}"
        yield warn("settings", what, f"run chmod 600 {file.path}")
    else:
        yield ok("settings", f"valid; {file.path} has {len(file.settings)} of them")
