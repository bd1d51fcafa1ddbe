"""``fairserve price``: prices of the tokens of models, with history."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument, Option

from fairserve.platform.base.command_line import CommandGroup, option
from fairserve.platform.server.admin_cli.client import AdminClient, path_of
from fairserve.platform.server.admin_cli.commands import command
from fairserve.platform.server.admin_cli.fields import body_of
from fairserve.platform.server.admin_cli.names import later_price_of

app = CommandGroup(help="Manage the prices of tokens. docs/guide/tenants.md has examples.")

_Price = Annotated[str, Argument(metavar="PRICE", help="Its model or its id, price_...")]


@command(
    app,
    option(
        "cached_input",
        float,
        metavar="AMOUNT",
        help="Price of a million cached prompt tokens; default: that of --input.",
    ),
    option(
        "reasoning",
        float,
        metavar="AMOUNT",
        help="Price of a million output tokens that workers report as reasoning; default: that of"
        " --output.",
    ),
    option(
        "flex_multiplier",
        float,
        metavar="FACTOR",
        help="Factor on the prices for calls of the tier flex and of batches; default: 1.",
    ),
    option(
        "priority_multiplier",
        float,
        metavar="FACTOR",
        help="Factor on the prices for calls of the tier priority; default: 1.",
    ),
    option("valid_from", str, metavar="TIME", help="ISO 8601 with a zone; default: now."),
    name="set",
)
def add(
    client: AdminClient,
    model: Annotated[
        str, Argument(metavar="MODEL", help="The served model; * for all without a price.")
    ],
    input: Annotated[float, Option(metavar="AMOUNT", help="Price of a million prompt tokens.")],
    output: Annotated[float, Option(metavar="AMOUNT", help="Price of a million output tokens.")],
    **given: Any,
) -> Any:
    """Set a model's price from now on, or from a later time."""
    body = {"model": model, "input": input, "output": output}
    more = ("cached_input", "reasoning", "flex_multiplier", "priority_multiplier", "valid_from")
    body |= body_of(given, *more)
    return client.call("POST", "/admin/prices", body)


@command(
    app,
    name="list",
    columns=(
        "id",
        "model",
        "input",
        "cached_input",
        "output",
        "reasoning",
        "currency",
        "valid_from",
    ),
)
def list_prices(
    client: AdminClient,
    model: Annotated[str | None, Option(metavar="MODEL", help="Only prices of this model.")] = None,
    **page: Any,
) -> Any:
    """List prices, past ones included, newest first."""
    return client.call("GET", "/admin/prices", model=model, **page)


@command(app)
def delete(client: AdminClient, price: _Price) -> Any:
    """Delete a price that is not valid yet."""
    return client.call("DELETE", path_of("admin", "prices", later_price_of(client, price)))
