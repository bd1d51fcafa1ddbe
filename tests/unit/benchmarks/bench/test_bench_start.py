"""Test the figures of a start with one real server."""

import contextlib

from fairserve.benchmarks.bench import start


def test_a_server_is_measured_from_its_start_until_it_idles():
    with contextlib.closing(start.ServerStart(idle_s=0.1)) as servers:
        reading = servers.round()
    names = [figure.name for part in start.command.parts for figure in part.figures]
    assert [*reading.figures] == names
    assert all(value > 0 for value in reading.figures.values())
    assert reading.details["elapsed_s"] > 0
