"""Options of ``fairserve bench engine``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from fairserve.benchmarks.bench.engine.workloads import NAMES
from fairserve.benchmarks.bench.measure import MIN_ROUNDS
from fairserve.platform.base.command_line import CommandError, file_to_write

Shape = Literal["5m", "100m", "0.6b", "8b"]
_NONE = "none"


def _over_0(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError(f"{text} is given; allowed: over 0")
    return value


def _workload(text: str) -> str:
    if text not in (*NAMES, _NONE):
        raise ValueError(f"{text!r} is unknown; known: {', '.join((*NAMES, _NONE))}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBenchOptions:
    """Options of ``fairserve bench engine``."""

    json: Annotated[
        Path | None, Option(parser=file_to_write, metavar="OUT", help="Write the results.")
    ] = None
    fit: Annotated[
        Path | None,
        Option(
            parser=file_to_write,
            metavar="OUT",
            help="Also fit the simulator's cost model to measured passes, write it for "
            "`fairserve simulate --model-cost`, and compare a replay with a run.",
        ),
    ] = None
    shape: Annotated[
        Shape, Option(help="Size of the model: 5m and 100m for a CPU, 0.6b and 8b for a GPU.")
    ] = "100m"
    workloads: Annotated[
        list[str] | None,
        Option(
            parser=_workload,
            metavar="NAME...",
            help=f"Only these: {', '.join(NAMES)}; {_NONE} for a fit alone. Default: all.",
        ),
    ] = None
    rounds: Annotated[int, Option(min=MIN_ROUNDS, max=1000, metavar="N", help="Rounds.")] = 5
    limit_s: Annotated[
        float,
        Option(
            parser=_over_0, metavar="S", help="Begin no further workload after so many seconds."
        ),
    ] = math.inf
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Option(help="Type of weights and KV cache; auto: float32, on a GPU bfloat16."),
    ] = "auto"
    device: Annotated[
        str, Option(metavar="DEVICE", help="cpu, cuda; auto: cuda if there is one.")
    ] = "auto"
    threads: Annotated[
        int | None,
        Option(
            min=1,
            max=1024,
            metavar="N",
            help="Threads of the CPU, for all engines; default: torch's, 1 for 5m.",
        ),
    ] = None

    @property
    def chosen(self) -> list[str]:
        """Return the names of the workloads to measure. Raises CommandError."""
        names = self.workloads or list(NAMES)
        if _NONE not in names:
            return names
        if len(names) > 1 or self.fit is None:
            raise CommandError(
                "--workloads none leaves only the fit: give --fit OUT, and no other name"
            )
        return []
