"""``fairserve serve``: runs the platform. Its flags are the settings.

Exit codes: 0 stopped, 1 not possible here, 2 wrong flags, settings or schema.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fairserve.platform.base.argument_parser import USAGE_ERROR, OneLineParser
from fairserve.platform.server.settings_flags import add_flags, settings_from


def main(argv: Sequence[str]) -> int:
    """Run the server until it is stopped; returns the exit code."""
    from fairserve.platform.tenancy.system.parameters import configured_system

    arguments = parser().parse_args(argv)
    try:
        settings = settings_from(arguments)
        configured_system(settings.tuning)
    except ValueError as error:
        return _fail(str(error))
    from fairserve.platform.db.schema import SchemaError
    from fairserve.platform.server.process import serve

    try:
        return serve(settings)
    except SchemaError as error:
        return _fail(str(error))


def parser() -> OneLineParser:
    """Return the parser of all flags; needs no server."""
    found = OneLineParser(
        prog="fairserve serve",
        usage="%(prog)s [--FLAG VALUE ...]",
        description="Run the API, control and, unless external workers are named by --worker-urls, "
        "--fleet-file or the admin API, embedded workers.",
        epilog="Secrets have no flag: FAIRSERVE_SECRET_KEY, FAIRSERVE_SECRET_KEY_PREVIOUS, "
        "FAIRSERVE_ADMIN_KEY.",
        allow_abbrev=False,
    )
    add_flags(found)
    return found


def _fail(message: str) -> int:
    print(f"fairserve: {message}", file=sys.stderr)
    return USAGE_ERROR
