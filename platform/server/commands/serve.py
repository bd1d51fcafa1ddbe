"""``fairserve serve``: runs the platform. Its flags are the settings.

Exit codes: 0 stopped, 1 not possible here, 2 wrong flags, settings or schema.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairserve.platform.base.command_line import CommandError, CommandGroup, with_options
from fairserve.platform.server.configuration.flags import SECRETS_NOTE, all_flags
from fairserve.platform.server.configuration.sources import SettingsError, layers_of
from fairserve.platform.server.settings import Settings

if TYPE_CHECKING:
    from fairserve.platform.server.picker import Picker

app = CommandGroup()


@app.command(
    options_metavar="[--FLAG VALUE ...]",
    epilog=SECRETS_NOTE,
)
@with_options(*all_flags())
def serve(**flags: Any) -> int:
    """Run the API, control and, unless external workers are named, embedded workers.

    External workers are named by --worker-urls, --fleet-file, the configuration file or the admin API.
    """
    return run_server(flags)


def run_server(
    flags: dict[str, Any], addition_of: Callable[[Settings], Picker] | None = None
) -> int:
    """Run the server with the settings of these flags; return its exit code.

    ``addition_of`` returns one more part of it. Raises CommandError for wrong settings.
    """
    # Modules last as long as the process. Collections would visit them 28 times while they are imported.
    gc.disable()
    from fairserve.platform.db.schema import SchemaError
    from fairserve.platform.server import process
    from fairserve.platform.server.configuration.checks import checked_settings

    gc.freeze()
    gc.enable()

    def read() -> Settings:
        return checked_settings(layers_of(flags))

    try:
        settings = read()
        addition = None if addition_of is None else addition_of(settings)
        return process.serve(settings, reread=read, addition=addition)
    except (SettingsError, SchemaError) as error:
        raise CommandError(str(error)) from error
