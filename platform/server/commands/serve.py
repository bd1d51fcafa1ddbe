"""``fairserve serve``: runs the platform. Its flags are the settings.

Exit codes: 0 stopped, 1 not possible here, 2 wrong flags, settings or schema.
"""

from __future__ import annotations

from typing import Any

from fairserve.platform.base.command_line import App, CommandError, with_options
from fairserve.platform.server.settings_flags import flag_options, settings_from
from fairserve.platform.server.settings_topics import TOPICS

app = App()


@app.command(
    options_metavar="[--FLAG VALUE ...]",
    epilog="Secrets have no flag: FAIRSERVE_SECRET_KEY, FAIRSERVE_SECRET_KEY_PREVIOUS, "
    "FAIRSERVE_ADMIN_KEY, FAIRSERVE_OIDC_CLIENT_SECRET.",
)
@with_options(
    *(option for topic, fields in TOPICS.items() for option in flag_options(*fields, topic=topic))
)
def serve(**flags: Any) -> int:
    """Run the API, control and, unless external workers are named, embedded workers.

    External workers are named by --worker-urls, --fleet-file or the admin API.
    """
    from fairserve.platform.console.oidc.loading import load_provider
    from fairserve.platform.tenancy.system.parameters import configured_system

    try:
        settings = settings_from(flags)
        configured_system(settings.tuning)
        load_provider(settings.console)
    except ValueError as error:
        raise CommandError(str(error)) from error
    from fairserve.platform.db.schema import SchemaError
    from fairserve.platform.server import process

    try:
        return process.serve(settings)
    except SchemaError as error:
        raise CommandError(str(error)) from error
