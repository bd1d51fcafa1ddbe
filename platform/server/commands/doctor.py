"""``fairserve doctor``: checks whether a server with these settings can work here.

Exit codes: 0 nothing failed, 1 a check failed, 2 usage error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from fairserve.platform.base.command_line import FAILED, CommandGroup, with_options
from fairserve.platform.server.configuration.flags import SECRETS_NOTE, all_flags

if TYPE_CHECKING:
    from fairserve.platform.server.doctor.finding import Finding

app = CommandGroup()


@app.command(options_metavar="[--FLAG VALUE ...]", epilog=SECRETS_NOTE)
@with_options(*all_flags())
def doctor(
    as_json: Annotated[
        bool, Option("--json", help="Print the findings as one JSON object.")
    ] = False,
    **flags: Any,
) -> int:
    """Check settings, database, secret key, journal, Redis, workers, tokenizers, clocks and limits.

    Reads the same flags, environment and configuration file as `fairserve serve`, works beside a running
    server, and changes nothing. Prints one line for each check: ok, warn or fail, what was found, and
    what helps.
    """
    findings = []
    for finding in _findings(flags):
        findings.append(finding)
        if not as_json:
            advice = f"; {finding.help}" if finding.help else ""
            print(f"{finding.status:<4}  {finding.check}: {finding.found}{advice}", flush=True)
    failed = any(finding.status == "fail" for finding in findings)
    if as_json:
        print(
            json.dumps({"failed": failed, "checks": [asdict(each) for each in findings]}, indent=2)
        )
    return FAILED if failed else 0


def _findings(flags: dict[str, Any]) -> Iterator[Finding]:
    from fairserve.platform.server.configuration.checks import part_problems
    from fairserve.platform.server.configuration.sources import SettingsError, layers_of
    from fairserve.platform.server.doctor import host, redis_server, storage, workers
    from fairserve.platform.server.doctor.finding import fail

    try:
        layers = layers_of(flags)
        settings = layers.settings()
        problems = list(part_problems(settings))
        if problems:
            raise SettingsError(problems)
    except SettingsError as error:
        for problem in error.problems:
            yield fail("settings", problem, "see `fairserve config check`")
        return
    yield from host.check_configuration(layers, settings)
    database = storage.DatabaseChecks(settings)
    yield from database.run()
    yield from storage.check_journal(settings)
    yield from storage.check_private_files(settings)
    yield from redis_server.check_redis(settings)
    yield from host.check_open_files(settings)
    yield from workers.check_workers(settings, database.stored)
