"""``fairserve picker``: picks endpoints for gateways. Its flags are the settings.

Exit codes: 0 stopped, 1 not possible here, 2 wrong flags, settings or schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairserve.platform.base.command_line import CommandError, CommandGroup, with_options
from fairserve.platform.server.commands.serve import run_server
from fairserve.platform.server.configuration.flags import SECRETS_NOTE, all_flags
from fairserve.platform.server.settings import Settings

if TYPE_CHECKING:
    from fairserve.platform.server.picker import Picker

app = CommandGroup()

NO_WORKERS = (
    "the picker has no workers: name an InferencePool with --pool-name, a fleet file with --fleet-file,"
    " or workers with --worker-urls"
)


@app.command(options_metavar="[--FLAG VALUE ...]", epilog=SECRETS_NOTE)
@with_options(*all_flags())
def picker(**flags: Any) -> int:
    """Run the endpoint picker of an inference gateway, with the API and the console beside it.

    Speaks the endpoint picker protocol of the Gateway API Inference Extension on --picker-port.
    """
    return run_server(flags, _picker)


def _picker(settings: Settings) -> Picker:
    if not (settings.picker.pool_name or settings.fleet.fleet_file or settings.fleet.worker_urls):
        raise CommandError(NO_WORKERS)
    from fairserve.platform.server.picker import Picker

    return Picker(settings)
