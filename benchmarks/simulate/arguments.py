"""The arguments of ``fairserve simulate``, and what they stand for.

Every wrong value is an ``argparse`` error: one line, exit code 2, nothing written.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from fairserve.benchmarks.plots import plot_folder
from fairserve.benchmarks.simulate.declared import wrong_profiles
from fairserve.engine.simulated.cost_model import COST_MODELS, CostModel, cost_model
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces import assignment
from fairserve.engine.simulated.traces.model import Trace, TraceError
from fairserve.engine.simulated.traces.reading import read_trace
from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.base.argument_parser import OneLineParser
from fairserve.platform.tenancy.system.parameters import with_checked
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig
from fairserve.throttling.base import Limits

ARRIVALS = "recorded, once, even:RATE, poisson:RATE (interactions per second)"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse; exits with code 2 and one line for an argument that is wrong by itself."""
    parser = OneLineParser(
        prog="fairserve simulate",
        description="Replay a trace through the dispatcher and the schedulers that serve, on "
        "simulated workers in virtual time, and compare systems.",
        epilog="Formats of traces and the rules for users and arrivals: docs/guide/traces.md.",
        allow_abbrev=False,
    )
    trace = parser.add_argument_group("the trace")
    trace.add_argument(
        "--trace",
        type=Path,
        nargs="+",
        action="extend",
        required=True,
        metavar="FILE",
        help="a trace of any known format; several are mixed",
    )
    trace.add_argument("--limit", type=at_least(1), metavar="N", help="the first N interactions")
    trace.add_argument(
        "--from-s", type=seconds, default=0.0, metavar="S", help="arrivals from this second on"
    )
    trace.add_argument("--to-s", type=seconds, metavar="S", help="arrivals before this second")
    trace.add_argument("--arrivals", default="recorded", metavar="RULE", help=f"one of {ARRIVALS}")
    trace.add_argument("--time-scale", type=float, metavar="F", help="stretch arrivals by F")
    trace.add_argument("--users", type=at_least(1), metavar="N", help="give the runs to N users")
    trace.add_argument(
        "--user-skew", type=float, default=0.0, metavar="S", help="Zipf exponent of the users"
    )
    trace.add_argument(
        "--abusive", type=at_least(1), metavar="K", help="of these users, K that flood"
    )
    trace.add_argument(
        "--abusive-share",
        type=float,
        default=0.5,
        metavar="P",
        help="their share of the runs (default: 0.5)",
    )
    trace.add_argument("--tenants", type=at_least(1), metavar="N", help="give users to N tenants")

    system = parser.add_argument_group("the systems")
    system.add_argument(
        "--system",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help=f"known: {', '.join(SYSTEMS)}, rpm-N (default: fairserve)",
    )
    system.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change an option of all systems, or by NAME:KEY=VALUE of one (docs/guide/operator.md)",
    )
    system.add_argument(
        "--user-rpm", type=at_least(1), metavar="N", help="limit of each user, calls a minute"
    )
    system.add_argument(
        "--app-rpm", type=at_least(1), metavar="N", help="limit of each app, calls a minute"
    )
    system.add_argument(
        "--retries",
        type=at_least(0),
        default=0,
        metavar="N",
        help="of a refused call, after its Retry-After; its run is aborted then",
    )
    system.add_argument(
        "--isolation",
        choices=("none", "tenant", "app", "user"),
        default="none",
        help="within what cached prefixes are shared (default: none, so all share)",
    )
    system.add_argument(
        "--declared",
        action="append",
        default=[],
        metavar="APP=FACTOR",
        help="this app's profile is wrong by a factor; those of others are the trace's own means",
    )
    system.add_argument(
        "--learn-profiles", action="store_true", help="learn profiles from what calls use"
    )

    workers = parser.add_argument_group("the workers")
    workers.add_argument("--workers", type=at_least(1), default=1, metavar="N")
    workers.add_argument(
        "--model-cost",
        type=_cost_model,
        default="a100-llama3-8b",
        metavar="NAME",
        help=f"{', '.join(COST_MODELS)}, or a JSON file (default: a100-llama3-8b)",
    )
    workers.add_argument(
        "--dispatch-delay-s",
        type=seconds,
        default=0.0,
        metavar="S",
        help="from control to a worker's queue",
    )

    running = parser.add_argument_group("running and output")
    running.add_argument("--seed", type=at_least(0), default=0, metavar="N")
    running.add_argument("--jobs", type=at_least(1), default=1, metavar="N", help="cores to use")
    running.add_argument("--json", type=output, metavar="OUT", help="write all figures")
    running.add_argument("--plot", type=plot_folder, metavar="DIR", help="draw plots here")
    running.add_argument(
        "--ledger",
        metavar="URL",
        help="write calls and runs of the one system into this database, for `fairserve usage`",
    )
    running.add_argument(
        "--ledger-begin",
        type=moment,
        metavar="TIME",
        help="of the rows: the trace's zero, with its zone (default: yesterday, midnight UTC)",
    )
    return parser.parse_args(argv)


def trace_of(arguments: argparse.Namespace) -> Trace:
    """Read, cut, assign. Raises TraceError or ValueError."""
    read = [read_trace(path) for path in arguments.trace]
    trace = read[0] if len(read) == 1 else assignment.merge(read)
    rule, _, rate = arguments.arrivals.partition(":")
    if rule == "once" and not rate:
        trace = assignment.arrive_at_once(trace)
    elif rule in ("even", "poisson") and rate:
        arrive = assignment.arrive_evenly if rule == "even" else assignment.arrive_poisson
        trace = arrive(trace, rate_per_s=_rate(rate), seed=arguments.seed)
    elif arguments.arrivals != "recorded":
        raise TraceError(f"--arrivals is {arguments.arrivals!r}; allowed: {ARRIVALS}")
    if arguments.from_s > 0 or arguments.to_s is not None:
        until_s = float("inf") if arguments.to_s is None else arguments.to_s
        trace = assignment.window(trace, arguments.from_s, until_s)
    if arguments.limit is not None:
        trace = assignment.limit(trace, arguments.limit)
    if arguments.time_scale is not None:
        trace = assignment.scale_time(trace, arguments.time_scale)
    if arguments.users is not None:
        trace = assignment.assign_users(
            trace,
            users=arguments.users,
            skew=arguments.user_skew,
            abusive=arguments.abusive or 0,
            abusive_share=arguments.abusive_share if arguments.abusive else 0.0,
            seed=arguments.seed,
        )
    elif arguments.abusive is not None:
        raise TraceError("--abusive needs --users: the number of all users")
    if arguments.tenants is not None:
        trace = assignment.assign_tenants(trace, tenants=arguments.tenants, seed=arguments.seed)
    if not trace.interactions:
        raise TraceError(f"{trace.name}: no interaction is left to simulate")
    return trace


def systems_of(arguments: argparse.Namespace) -> dict[str, SystemConfig]:
    """By name, with the options set. Raises ValueError that names the system or key."""
    systems: dict[str, SystemConfig] = {}
    names = arguments.system or ["fairserve"]
    for name in names:
        options: dict[str, Any] = {}
        for text in arguments.set:
            key, equals, value = text.partition("=")
            if not equals:
                raise ValueError(f"--set is {text!r}; allowed: KEY=VALUE or NAME:KEY=VALUE")
            of, colon, rest = key.partition(":")
            if colon and of not in names:
                raise ValueError(f"--set is {text!r}; simulated: {', '.join(names)}")
            if not colon or of == name:
                options[rest if colon else key] = _value(value)
        try:
            base = SYSTEMS[name]
        except KeyError as error:
            raise ValueError(str(error.args[0])) from error
        try:
            systems[name] = with_checked(base, options)
        except ValueError as error:
            raise ValueError(f"system {name}: {error}") from error
    return systems


def options_of(arguments: argparse.Namespace, trace: Trace) -> ReplayOptions:
    """Raises ValueError."""
    return ReplayOptions(
        workers=arguments.workers,
        seed=arguments.seed,
        dispatch_delay_s=arguments.dispatch_delay_s,
        retries=arguments.retries,
        isolation=arguments.isolation,
        limits=Limits(arguments.user_rpm, arguments.app_rpm),
        profiles=wrong_profiles(trace, arguments.declared),
        learning=LearningOptions() if arguments.learn_profiles else None,
    )


def _value(text: str) -> Any:
    """JSON, or a string as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise TraceError(f"--arrivals has rate {text!r}; allowed: {ARRIVALS}") from None


def at_least(least: int) -> Callable[[str], int]:
    """A whole number, so large at least."""

    def whole(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is given; allowed: {least} or more")
        return value

    whole.__name__ = "number"
    return whole


def seconds(text: str) -> float:
    """A finite time, 0 or later."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is given; allowed: finite, 0 or more")
    return value


def moment(text: str) -> datetime:
    """A time with its zone."""
    value = datetime.fromisoformat(text)
    if value.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text} has no zone; allowed: 2026-01-31T00:00:00Z")
    return value


def _cost_model(text: str) -> CostModel:
    try:
        return cost_model(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def output(text: str) -> Path:
    """A file to write, in a folder that exists."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"the folder {path.parent} cannot be written to")
    return path
