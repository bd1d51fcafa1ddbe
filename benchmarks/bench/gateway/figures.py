"""Figures of ``fairserve bench gateway``, with their targets and peers.

The peers of a figure are the values of the same figure of the other gateways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median

from fairserve.benchmarks.bench.figure import BenchResult, Figure
from fairserve.benchmarks.bench.gateway.calls import KINDS, CallShape
from fairserve.benchmarks.bench.gateway.gateways import EMBEDDED, LITELLM
from fairserve.benchmarks.bench.gateway.load import LoadOutcome
from fairserve.benchmarks.bench.gateway.measurement import (
    TOKENS,
    GatewayTurn,
    MeasuredGateway,
    Rest,
)
from fairserve.benchmarks.bench.measure import percentile

GATEWAYS = (EMBEDDED, LITELLM)


@dataclass(frozen=True, slots=True)
class _Quantity:
    """A quantity of each turn; its figures are ``gateway_{gateway}_{shape}_{name}``."""

    name: str
    unit: str
    what: str
    of: Callable[[Sequence[GatewayTurn]], float]
    """Returns the value of one or more turns."""
    higher_is_better: bool = False

    def result(
        self,
        gateway: str,
        shape: CallShape,
        turns: Sequence[GatewayTurn],
        details: Mapping[str, float],
    ) -> BenchResult:
        """Return the values of the rounds, and that of all rounds together."""
        values = tuple(self.of([turn]) for turn in turns)
        return BenchResult(self.figure(gateway, shape), values, details, self.of(turns))

    def figure(self, gateway: str, shape: CallShape) -> Figure:
        """Return the figure of one gateway and one shape of calls."""
        kind = "not streamed" if shape.kind == "whole" else "streamed"
        return Figure(
            f"gateway_{gateway}_{shape.name}_{self.name}",
            self.unit,
            f"{self.what}, {shape.tokens} tokens, {kind}",
            None,
            higher_is_better=self.higher_is_better,
        )


def added_ms(turns: Sequence[GatewayTurn], share: float, *, first: bool = False) -> float:
    """Return by how much this percentile of all calls is later than without a gateway.

    It is of the time to the end of the answer, or to its ``first`` token.
    """

    def of(outcomes: Iterable[LoadOutcome]) -> float:
        each = (found.first_ms if first else found.total_ms for found in outcomes)
        return percentile(list(chain.from_iterable(each)), share)

    return of(turn.through for turn in turns) - of(turn.direct for turn in turns)


QUANTITIES = (
    _Quantity(
        "cpu_us",
        "us",
        "CPU of all processes for a call",
        lambda turns: median(turn.cpu_us for turn in turns),
    ),
    _Quantity(
        "max_rps",
        "1/s",
        "calls a second on one core",
        lambda turns: median(turn.max_rps for turn in turns),
        higher_is_better=True,
    ),
    _Quantity(
        "added_p50_ms", "ms", "added latency at half load", lambda turns: added_ms(turns, 0.5)
    ),
    _Quantity("added_p99_ms", "ms", "added p99 at half load", lambda turns: added_ms(turns, 0.99)),
)
_RESTS: tuple[tuple[str, str, str, Callable[[Rest], float]], ...] = (
    ("idle_mb", "MB", "memory of all processes, idle", lambda rest: rest.idle_bytes / 1e6),
    ("idle_cpu_ms_per_s", "ms/s", "CPU while idle", lambda rest: rest.idle_s * 1e3),
    (
        "open_call_us_per_s",
        "us/s",
        "CPU of an open call without tokens",
        lambda rest: rest.open_call_us_per_s,
    ),
)


def figure_names() -> list[str]:
    """Return the names of all figures with the default shapes."""
    shapes = [CallShape(kind, tokens) for kind in KINDS for tokens in TOKENS]
    of_calls = [
        quantity.figure(gateway, shape).name
        for gateway in GATEWAYS
        for shape in shapes
        for quantity in QUANTITIES
    ]
    of_rest = [f"gateway_{gateway}_{name}" for gateway in GATEWAYS for name, *_ in _RESTS]
    ratios = [_ratio(shape).name for shape in shapes]
    return [*of_calls, *of_rest, *ratios]


def results(measured: MeasuredGateway) -> list[BenchResult]:
    """Return all figures of what was measured."""
    return [
        *_with_peers(list(_of_calls(measured))),
        *_with_peers(list(_of_rest(measured))),
        *_ratios(measured),
    ]


def _of_calls(measured: MeasuredGateway) -> Iterator[tuple[str, BenchResult]]:
    for gateway, shapes in measured.turns.items():
        for shape, turns in shapes.items():
            details = _details(turns)
            details["open_calls_at_max"] = measured.concurrency[gateway][shape]
            for quantity in QUANTITIES:
                yield gateway, quantity.result(gateway, shape, turns, details)


def _details(turns: Sequence[GatewayTurn]) -> dict[str, float]:
    return {
        "at_rps": median(turn.rate for turn in turns),
        "calls": sum(turn.through.calls for turn in turns),
        "failed": sum(turn.through.failed for turn in turns),
        "cpu_at_max_us": median(turn.saturated_cpu_us for turn in turns),
        "first_token_added_p50_ms": added_ms(turns, 0.5, first=True),
        "direct_p50_ms": median(percentile(turn.direct.total_ms, 0.5) for turn in turns),
    }


def _of_rest(measured: MeasuredGateway) -> Iterator[tuple[str, BenchResult]]:
    for gateway, rests in measured.rests.items():
        for name, unit, what, of in _RESTS:
            figure = Figure(f"gateway_{gateway}_{name}", unit, what, None)
            yield gateway, BenchResult(figure, tuple(map(of, rests)), {})


def _with_peers(found: Sequence[tuple[str, BenchResult]]) -> list[BenchResult]:
    """Return the results, each with the values of the other gateways for the same quantity."""
    values: dict[str, dict[str, float]] = {}
    for gateway, result in found:
        values.setdefault(_quantity(gateway, result), {})[gateway] = result.value
    with_peers = []
    for gateway, result in found:
        peers = {
            name: value
            for name, value in values[_quantity(gateway, result)].items()
            if name != gateway
        }
        with_peers.append(replace(result, figure=replace(result.figure, peers=peers)))
    return with_peers


def _quantity(gateway: str, result: BenchResult) -> str:
    return result.figure.name.removeprefix(f"gateway_{gateway}_")


def _ratio(shape: CallShape) -> Figure:
    return Figure(
        f"gateway_{LITELLM}_over_{EMBEDDED}_{shape.name}_cpu",
        "x",
        "LiteLLM's CPU for a call over that of FairServe",
        None,
        higher_is_better=True,
    )


def _ratios(measured: MeasuredGateway) -> Iterator[BenchResult]:
    """Yield LiteLLM's CPU time over FairServe's; ratios are taken within a round."""
    if LITELLM not in measured.turns:
        return
    for shape, turns in measured.turns[EMBEDDED].items():
        theirs = measured.turns[LITELLM][shape]
        values = tuple(their.cpu_us / our.cpu_us for our, their in zip(turns, theirs, strict=True))
        yield BenchResult(_ratio(shape), values, {})
