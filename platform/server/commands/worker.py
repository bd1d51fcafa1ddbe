"""``fairserve worker``: one engine process. Needs no package of the server."""

from __future__ import annotations

from fairserve.engine.worker import ENVIRONMENT, WorkerOptions, worker
from fairserve.platform.base.command_line import CommandGroup, taking

app = CommandGroup()
app.command(context_settings={"auto_envvar_prefix": ENVIRONMENT})(taking(WorkerOptions)(worker))
