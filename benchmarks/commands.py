"""The laboratory's subcommands of ``fairserve``: entry points of the group ``fairserve.commands``.

The first line of a docstring is the subcommand's help. Each imports what it needs only when it runs, so
that ``fairserve --help`` stays quick.
"""

from __future__ import annotations


def bench(argv: list[str]) -> int:
    """Measure what the platform itself costs."""
    from fairserve.benchmarks.bench.main import main

    return main(argv)


def demo(argv: list[str]) -> int:
    """Run three agent apps against several systems, and compare."""
    from fairserve.benchmarks.demo.main import main

    return main(argv)


def reproduce(argv: list[str]) -> int:
    """Reproduce tables and figures of the papers, published beside measured."""
    from fairserve.benchmarks.reproduce.main import main

    return main(argv)


def simulate(argv: list[str]) -> int:
    """Replay a trace in virtual time and compare systems."""
    from fairserve.benchmarks.simulate.command import main

    return main(argv)
