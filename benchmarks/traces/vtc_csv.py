"""The real trace of the VTC artifact as a table: ``req_time_s,client,input_tokens,output_tokens``.

Each row is a request, and each client becomes a user.

Weakness: these clients are the models of an arena with rescaled times; the skew between them is
that of real traffic, but their behaviour over time is not that of a person.
"""

from __future__ import annotations

from pathlib import Path

from fairserve.benchmarks.traces.flat import flat_trace, single_call
from fairserve.engine.simulated.traces.defaults import Defaults
from fairserve.engine.simulated.traces.lines import read_lines
from fairserve.engine.simulated.traces.model import Trace

VTC_HEADER = ("req_time_s", "client", "input_tokens", "output_tokens")


def read_vtc_csv(path: Path, *, defaults: Defaults = Defaults()) -> Trace:
    """Read a file whose first line is the header.

    Interaction ids are line numbers, users the clients' names. Raises `TraceError` for a row with other
    columns, a negative time, an empty client, a prompt below 1 token, or an output below 0.
    """
    lines = read_lines(path)
    next(lines, None)
    interactions = []
    for line in lines:
        time, client, prompt, output = line.columns(VTC_HEADER)
        interactions.append(
            single_call(
                str(line.number),
                app="vtc",
                user=line.identifier(client, "client"),
                arrival_s=line.number_text(time, "req_time_s"),
                prompt_tokens=line.integer_text(prompt, "input_tokens", least=1),
                output_tokens=line.integer_text(output, "output_tokens"),
                defaults=defaults,
                origin=line.origin,
            )
        )
    return flat_trace(path, interactions)
