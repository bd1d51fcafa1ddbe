"""``fairserve bench GROUP``: what the platform itself costs, as figures with targets.

A group is a module with an app of its own, imported when it is named. Exit codes: 0 measured (whatever
the figures are), 1 not possible here, 2 wrong use.
"""

from __future__ import annotations

from fairserve.platform.base.command_line import CommandGroup, LazyCommands
from fairserve.platform.server.cli import Subcommand

app = CommandGroup(
    cls=LazyCommands,
    help="Measure what the platform itself costs.",
    subcommand_metavar="GROUP [ARGS]...",
)
GROUPS = {
    "scheduling": ("scheduling", "Routing, prefix trees, local schedulers, the dispatcher."),
    "interactions": ("interactions", "The tracker of runs: time and memory of a call."),
    "ledger": ("ledger", "The database rows of a call, and their rollup, on SQLite."),
    "tokenising": ("tokenising", "The prompt of a call, and its hold of the event loop."),
    "usage": ("usage", "Reports from the rollups of a large ledger on PostgreSQL."),
    "engine": ("engine.command", "The embedded engine beside transformers and the simulator."),
    "start": ("start", "A server from its start until it is ready, and while it is idle."),
    "gateway": ("gateway.command", "FairServe beside LiteLLM: CPU, rate, latency, memory."),
    "soak": ("soak", "Many calls: memory and latency must not grow."),
    "shared": ("gateway.shared", "Servers that share one order, with PostgreSQL and Redis."),
}
"""Module and help of each group."""
for _name, (_module, _text) in GROUPS.items():
    app.command(_name, help=_text)(Subcommand(_text, f"benchmarks.bench.{_module}").load)
