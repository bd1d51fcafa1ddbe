"""``fairserve mcp``: read-only tools about a running server for assistants, over stdin and stdout.

The tools use the server's HTTP API with one key, so that an assistant reads what the key may read. There
is no HTTP transport: its port would give everybody who reaches it the access of the key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from fairserve.platform.base.command_line import CommandError, CommandGroup
from fairserve.platform.server.admin_cli.client import DEFAULT_URL, AdminClient, read_key

app = CommandGroup()


@app.command()
def mcp(
    url: Annotated[
        str,
        Option(envvar="FAIRSERVE_URL", metavar="URL", help="URL of the server."),
    ] = DEFAULT_URL,
    key_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="File with an admin or tenant key; default: FAIRSERVE_API_KEY of the environment.",
        ),
    ] = None,
) -> None:
    """Serve read-only tools for assistants, from a running server, over MCP.

    docs/guide/mcp.md has the configuration of assistants.
    """
    client = AdminClient(url, read_key(key_file))
    try:
        from fairserve.platform.server.mcp_server.server import tool_server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise CommandError("MCP is not installed: pip install 'fairserve[mcp]'") from None
    tool_server(client).run()
