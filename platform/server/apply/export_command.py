"""``fairserve export``: writes the state of a running server as the file of ``fairserve apply``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from fairserve.platform.base.command_line import (
    FAILED,
    CommandError,
    CommandGroup,
    file_to_write,
    with_options,
)
from fairserve.platform.db.base import utc_now
from fairserve.platform.server.admin_cli.commands import CONNECTION, client_of
from fairserve.platform.server.apply.declaration import Declaration
from fairserve.platform.server.apply.present import read_present

HEAD = """\
# Written by `fairserve export`, for `fairserve apply`. Keys and signing secrets are not in it.
"""

app = CommandGroup()


@app.command()
@with_options(*CONNECTION)
def export(
    out: Annotated[
        Path | None,
        Option(
            "--out",
            parser=file_to_write,
            metavar="FILE",
            help="The file; default: standard output.",
        ),
    ] = None,
    **connection: Any,
) -> None:
    """Write tenants, their apps and users, prices, workers and throttling as such a file."""
    text = text_of(read_present(client_of(**connection), utc_now()).declaration)
    if out is None:
        print(text, end="")
        return
    try:
        # Readable by its owner only, because the URL of a webhook may hold a secret of its receiver.
        handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            os.fchmod(handle, 0o600)  # also of a file that exists
            file.write(text)
    except OSError as error:
        raise CommandError(f"{out} cannot be written: {error.strerror}", FAILED) from None


def text_of(declaration: Declaration) -> str:
    """Return a declaration as YAML, without fields that have their default."""
    import yaml

    plain = {"managed_by": declaration.managed_by} | declaration.model_dump(
        mode="json", exclude_defaults=True
    )
    plain["aliases"] = {name: _target(each) for name, each in plain.pop("aliases", {}).items()}
    tenants = plain.pop("tenants", {})
    plain |= {"tenants": tenants}  # at the end
    filled = {name: value for name, value in plain.items() if value}
    return HEAD + str(yaml.safe_dump(whole(filled), sort_keys=False, allow_unicode=True, width=100))


def _target(target: dict[str, float]) -> Any:
    """Return an alias of one model by its name."""
    name, *others = target
    return target if others or target[name] != 1 else name


def whole(value: Any) -> Any:
    """Return a value with whole numbers as people write them: 2, not 2.0."""
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
