"""The laboratory's subcommands of ``fairserve``: entry points of the group ``fairserve.commands``.

The first line of a docstring is the subcommand's help. Each imports what it needs only when it runs, so
that ``fairserve --help`` stays quick.
"""

from __future__ import annotations

from fairserve.platform.base.command_line import run


def bench(argv: list[str]) -> int:
    """Measure what the platform itself costs."""
    from fairserve.benchmarks.bench.main import app

    return run(app, argv, "fairserve bench")


def demo(argv: list[str]) -> int:
    """Run three agent apps against several systems, and compare."""
    from fairserve.benchmarks.demo.main import app

    return run(app, argv, "fairserve demo")


def reproduce(argv: list[str]) -> int:
    """Reproduce tables and figures of the papers, published beside measured."""
    from fairserve.benchmarks.evidence import command as evidence
    from fairserve.benchmarks.reproduce.main import app

    about_reports = bool(argv) and argv[0] in evidence.COMMANDS
    return run(evidence.app if about_reports else app, argv, "fairserve reproduce")


def simulate(argv: list[str]) -> int:
    """Replay a trace in virtual time and compare systems."""
    from fairserve.benchmarks.simulate.command import app

    return run(app, argv, "fairserve simulate")
