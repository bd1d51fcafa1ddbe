"""``fairserve bench GROUP``: what the platform itself costs, as figures with targets.

A group is a module with an app of its own, imported when it is named. Exit codes: 0 measured (whatever
the figures are), 1 not possible here, 2 wrong use.
"""

from __future__ import annotations

from fairserve.platform.base.command_line import CommandGroup, LazyCommands

app = CommandGroup(
    cls=LazyCommands,
    help="Measure what the platform itself costs.",
    subcommand_metavar="GROUP [ARGS]...",
)


@app.command()
def scheduling() -> CommandGroup:
    """Routing, prefix trees, local schedulers, the dispatcher."""
    from fairserve.benchmarks.bench.scheduling import app

    return app


@app.command()
def interactions() -> CommandGroup:
    """The tracker of runs: time of a call, and memory for it."""
    from fairserve.benchmarks.bench.interactions import app

    return app


@app.command()
def ledger() -> CommandGroup:
    """The database rows of a call, and their rollup, on SQLite."""
    from fairserve.benchmarks.bench.ledger import app

    return app


@app.command()
def tokenising() -> CommandGroup:
    """The prompt of a call, and how long it holds the event loop."""
    from fairserve.benchmarks.bench.tokenising import app

    return app


@app.command()
def usage() -> CommandGroup:
    """Reports from the rollups of a large ledger on PostgreSQL."""
    from fairserve.benchmarks.bench.usage import app

    return app


@app.command()
def engine() -> CommandGroup:
    """The embedded engine beside transformers, and the simulator beside it."""
    from fairserve.benchmarks.bench.engine.command import app

    return app


@app.command()
def start() -> CommandGroup:
    """A server from its start until it is ready, and while it is idle."""
    from fairserve.benchmarks.bench.start import app

    return app


@app.command()
def gateway() -> CommandGroup:
    """FairServe beside LiteLLM: CPU of a call, rate, latency, memory."""
    from fairserve.benchmarks.bench.gateway.command import app

    return app


@app.command()
def soak() -> CommandGroup:
    """Many calls: memory and latency must not grow."""
    from fairserve.benchmarks.bench.soak import app

    return app


@app.command()
def shared() -> CommandGroup:
    """Servers that share one order: CPU by part, rate, latency; needs PostgreSQL and Redis."""
    from fairserve.benchmarks.bench.gateway.shared import app

    return app
