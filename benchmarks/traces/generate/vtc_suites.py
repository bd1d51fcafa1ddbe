"""The synthetic workloads of the VTC paper, by name.

Each entry of :data:`VTC_SUITES` is one experiment of section 5.2, 5.4 or appendix B: a few clients
that send requests of one size with a given process. A request is an interaction of a single call;
prompts share nothing. Rates are per client in requests per second (the paper gives them per
minute).

Values that the paper leaves open are those of its code, if it has them: the rates of
``backlogged-*``, six minutes of arrivals there and in ``overload`` (their backlog lasts for ten
minutes or more), the rate of client 2 in the first phase of ``shift``, the start of the rising
rate. The rates of ``weighted`` are chosen (2.0 each: 1,024 tokens/s, above the capacity of the
paper's server), and so are those of the ablation (4,096 and 8,192 tokens/s for the two clients at
every length, on a Llama-2-13b that serves about 5,000). Tables 2 and 3 use a recorded trace, which
is read, not generated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from fairserve.benchmarks.traces.generate.arrivals import (
    Arrivals,
    EvenArrivals,
    GammaArrivals,
    OnOffArrivals,
    PhasedArrivals,
    RampArrivals,
)
from fairserve.benchmarks.traces.generate.block_ids import BLOCK_TOKENS
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall

TENANT = "vtc"


@dataclass(frozen=True, slots=True)
class SuiteClient:
    """A client with requests of one size."""

    arrivals: Arrivals
    input_tokens: int = 256
    output_tokens: int = 256
    weight: float = 1.0
    """Weight against the others under weighted VTC."""
    group: str = ""


@dataclass(frozen=True, slots=True)
class VtcSuite:
    """An experiment."""

    clients: tuple[SuiteClient, ...]
    duration_s: float = 600.0
    pool_tokens: int = 10_000
    """Tokens of the KV pool of the paper's server."""
    server: Literal["a10g-llama2-7b", "a100-llama2-13b"] = "a10g-llama2-7b"

    @property
    def weights(self) -> dict[str, float]:
        """Return the weight of each user of the trace."""
        return {client_name(i): client.weight for i, client in enumerate(self.clients)}


def client_name(index: int) -> str:
    """Return the user of the client at this index; the first is ``client-1``, as in the paper."""
    return f"client-{index + 1}"


def _even(*rates: float, tokens: int = 256) -> tuple[SuiteClient, ...]:
    return tuple(SuiteClient(EvenArrivals(rate), tokens, tokens) for rate in rates)


def _ablation(pool_tokens: int, tokens: int) -> VtcSuite:
    rates = (4096 / (2 * tokens), 8192 / (2 * tokens))
    return VtcSuite(_even(*rates, tokens=tokens), pool_tokens=pool_tokens, server="a100-llama2-13b")


_SHIFT = (
    SuiteClient(
        PhasedArrivals(
            (
                (300.0, OnOffArrivals(EvenArrivals(0.5))),
                (300.0, EvenArrivals(1.0)),
                (300.0, EvenArrivals(0.5)),
            )
        )
    ),
    SuiteClient(
        PhasedArrivals(
            ((300.0, EvenArrivals(2.0)), (300.0, EvenArrivals(1.0)), (300.0, EvenArrivals(1.5)))
        )
    ),
)

VTC_SUITES: Mapping[str, VtcSuite] = MappingProxyType(
    {
        "overload": VtcSuite(_even(1.5, 3.0), 360.0),  # Figure 3; Table 4 by the profiled cost
        "three-clients": VtcSuite(_even(0.25, 0.5, 1.5)),  # Figure 4
        "on-off-below-share": VtcSuite(  # Figure 5
            (SuiteClient(OnOffArrivals(EvenArrivals(0.5))), *_even(2.0))
        ),
        "on-off-above-share": VtcSuite(  # Figure 6
            (SuiteClient(OnOffArrivals(EvenArrivals(2.0))), *_even(3.0))
        ),
        "short-and-long": VtcSuite(  # Figure 7
            (SuiteClient(GammaArrivals(8.0), 64, 64), SuiteClient(GammaArrivals(1.5), 256, 256))
        ),
        "long-output-and-long-input": VtcSuite(  # Figure 8
            (SuiteClient(GammaArrivals(8.0), 64, 512), SuiteClient(GammaArrivals(1.5), 512, 64))
        ),
        "increase": VtcSuite(  # Figure 9
            (
                SuiteClient(EvenArrivals(0.5), group="well-behaved"),
                SuiteClient(RampArrivals(0.2, 2.0), group="misbehaving"),
            )
        ),
        "shift": VtcSuite(_SHIFT, duration_s=900.0),  # Figure 10
        "pool-35000": _ablation(35_000, 256),  # Figure 15(a), and 256*2 of 15(b)
        "pool-65000": _ablation(65_000, 256),  # Figure 15(a)
        "length-512": _ablation(35_000, 512),  # Figure 15(b)
        "length-768": _ablation(35_000, 768),  # Figure 15(b)
        "weighted": VtcSuite(  # Figure 16
            tuple(SuiteClient(EvenArrivals(2.0), weight=weight) for weight in (1.0, 2.0, 3.0, 4.0))
        ),
        "backlogged-2": VtcSuite(_even(1.5, 3.0), 360.0),  # Figure 19 left, Table 5
        "backlogged-8": VtcSuite(_even(*[0.4] * 3, *[0.6] * 5), 360.0),  # Figure 19 right, Table 6
    }
)
"""Experiments by name."""


def generate_vtc_suite(name: str, seed: int, until_s: float | None = None) -> Trace:
    """Return the trace of an experiment, or its first ``until_s`` seconds.

    Every client has a separate random stream.
    """
    suite = VTC_SUITES[name]
    streams = np.random.default_rng(seed).spawn(len(suite.clients))
    interactions = []
    for index, (client, rng) in enumerate(zip(suite.clients, streams, strict=True)):
        user = client_name(index)
        for number, arrival_s in enumerate(client.arrivals.times_s(suite.duration_s, rng)):
            if until_s is not None and arrival_s >= until_s:
                break
            call = TraceCall("0", "request", (), 0.0, client.input_tokens, 0, client.output_tokens)
            interactions.append(
                Interaction(
                    interaction_id=f"{user}-{number}",
                    tenant=TENANT,
                    app="requests",
                    user=user,
                    arrival_s=float(arrival_s),
                    calls=(call,),
                    group=client.group,
                )
            )
    return Trace(f"vtc-{name}", BLOCK_TOKENS, ()).with_interactions(interactions)
