"""``fairserve config``: the settings from flags, environment and configuration file.

Exit codes: 0 valid, 1 a setting or the fleet is wrong, 2 usage error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from typer import Option

from fairserve.platform.base.command_line import (
    FAILED,
    CommandError,
    CommandGroup,
    print_table,
    with_options,
)
from fairserve.platform.server.configuration.flags import all_flags
from fairserve.platform.server.configuration.sources import Layers, SettingsError, layers_of

app = CommandGroup(help="Check and show the settings of the server, from all their sources.")


@app.command(options_metavar="[--FLAG VALUE ...]")
@with_options(*all_flags())
def check(**flags: Any) -> int:
    """Check all settings and the fleet, as `fairserve serve` with the same flags would read them.

    Prints each problem on one line, with file and line if it is in the configuration file.
    """
    from fairserve.platform.server.configuration.checks import problems_of

    try:
        layers = layers_of(flags)
        problems = problems_of(layers)
    except SettingsError as error:
        problems = error.problems
    for problem in problems:
        print(problem)
    if problems:
        return FAILED
    file = layers.file
    where = "no configuration file" if file is None else f"{file.path}: {_content(layers)}"
    print(f"the settings are valid ({where})")
    return 0


@app.command(options_metavar="[--FLAG VALUE ...]")
@with_options(*all_flags())
def show(
    format: Annotated[
        Literal["text", "yaml", "json"],
        Option(help="text for people; yaml or json is a configuration file."),
    ] = "text",
    **flags: Any,
) -> None:
    """Show the effective settings and the source of each: default, file, environment or flag.

    Secrets and passwords are masked; a configuration file in yaml or json leaves them out.
    """
    from fairserve.platform.fleet.fleet_file import FleetFileError
    from fairserve.platform.server.configuration import checks

    try:
        layers = layers_of(flags)
        settings = layers.settings()
        if format == "text":
            rows = checks.as_rows(layers, settings)
            print_table(rows, ["setting", "value", "source"])
        elif format == "yaml":
            print(checks.as_yaml(layers, settings), end="")
        else:
            print(checks.as_json(layers, settings))
    except (SettingsError, FleetFileError) as error:
        raise CommandError(str(error), FAILED) from error


def _content(layers: Layers) -> str:
    assert layers.file is not None
    fleet = ", and the fleet" if layers.file.has_fleet else ""
    return f"{len(layers.file.settings)} settings{fleet}"
