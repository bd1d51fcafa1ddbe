"""``fairserve apply``: makes a running server as a file declares it. Needs an admin key.

Exit codes: 0 the server is as declared; 1 an error; 2 with ``--dry-run``, there are differences.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Exit, Option, TyperException

from fairserve.platform.base.command_line import (
    FAILED,
    CommandError,
    CommandGroup,
    GroupedCommand,
    with_options,
)
from fairserve.platform.db.base import utc_now
from fairserve.platform.server.admin_cli.commands import CONNECTION, client_of
from fairserve.platform.server.apply.declaration import DeclarationError, read_declaration
from fairserve.platform.server.apply.execute import WITH_SECRET, Execution
from fairserve.platform.server.apply.export_command import whole
from fairserve.platform.server.apply.key_files import KeyFiles
from fairserve.platform.server.apply.plan import Change, ChangePlan, plan
from fairserve.platform.server.apply.present import read_present

DIFFERENT = 2
"""Exit code of ``--dry-run`` if there are differences."""
_SIGNS = {"create": "+", "change": "~", "delete": "-"}
_DONE = {"create": "created", "change": "changed", "delete": "deleted"}


class _ErrorsAreOne(GroupedCommand):
    """A command whose exit code 2 always means differences: wrong use is 1, too."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the arguments into the context."""
        try:
            return super().parse_args(ctx, args)
        except TyperException as error:
            error.exit_code = FAILED
            raise

    def invoke(self, ctx: Context) -> Any:  # type: ignore[override]
        """Run the function."""
        try:
            return super().invoke(ctx)
        except TyperException as error:
            error.exit_code = FAILED
            raise


app = CommandGroup()


@app.command(cls=_ErrorsAreOne, epilog="The file and a CI recipe: docs/guide/apply.md.")
@with_options(*CONNECTION)
def apply(
    file: Annotated[Path, Option("--file", "-f", metavar="FILE", help="The declaration, in YAML.")],
    prune: Annotated[
        bool,
        Option(
            "--prune",
            help="Delete objects that this declaration manages and no longer names.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        Option("--dry-run", help="Only show the plan; exit code 2 if there are differences."),
    ] = False,
    keys: Annotated[
        Path | None,
        Option(metavar="DIR", help="Folder for the keys and signing secrets of new objects."),
    ] = None,
    kubernetes: Annotated[
        bool, Option("--kubernetes", help="Write them as manifests of Kubernetes Secrets.")
    ] = False,
    **connection: Any,
) -> None:
    """Make tenants, their apps and users, prices, workers and throttling as a file declares them."""
    try:
        declared = read_declaration(file)
    except DeclarationError as error:
        raise CommandError(str(error)) from None
    client, now = client_of(**connection), utc_now()
    present = read_present(client, now)
    planned = plan(declared, present, now, prune=prune)
    for line in lines_of(planned):
        print(line)
    if dry_run:
        raise Exit(DIFFERENT if planned.changes else 0)
    secrets = [
        change.key
        for change in planned.changes
        if change.action == "create" and change.key.kind in WITH_SECRET
    ]
    files = None if keys is None else KeyFiles(keys, kubernetes=kubernetes)
    if files is not None:
        files.prepare(secrets)
    elif secrets:
        raise CommandError(
            f"nothing is applied: {len(secrets)} new objects have a key or a signing secret, which is"
            " shown once; name a folder for them by --keys"
        )
    execution = Execution(client, present.ids, files)
    try:
        for change, path in execution.run(planned):
            where = "" if path is None else f"; its secret is in {path}"
            print(f"{_DONE[change.action]} {change.key}{where}", flush=True)
    except CommandError as error:
        left = len(planned.changes) - execution.made
        raise CommandError(
            f"{error.message} ({execution.made} changes are made, {left} are not; apply again for the"
            " rest)",
            FAILED,
        ) from None


def lines_of(planned: ChangePlan) -> Iterator[str]:
    """Yield the lines that show a plan to people."""
    for change in planned.changes:
        within = f" with its {change.within} apps, users and webhooks" if change.within else ""
        yield f"{_SIGNS[change.action]} {change.key}{within}"
        if change.action != "delete":
            yield from (f"    {line}" for line in _differences(change))
    for key in planned.left:
        yield f"! {key} is no longer declared, and stays"
    if not planned.changes:
        yield "No differences."
        return
    counts = (
        f"{planned.count('create')} to create, {planned.count('change')} to change,"
        f" {planned.count('delete')} to delete"
    )
    yield f"Plan: {counts}."


def _differences(change: Change) -> Iterator[str]:
    for name, before, after in change.differences():
        if change.action == "change":
            yield f"{name}: {_text(before)} -> {_text(after)}"
        elif after not in (None, "", [], {}):
            yield f"{name}: {_text(after)}"


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.15g}"
    return json.dumps(whole(value), ensure_ascii=False)
