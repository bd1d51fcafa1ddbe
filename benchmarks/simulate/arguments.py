"""The arguments of ``fairserve simulate``, and what they stand for.

Every wrong value is an error of one line with exit code 2; nothing is written.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from fairserve.benchmarks.plots import plot_folder
from fairserve.benchmarks.simulate.declared import wrong_profiles
from fairserve.benchmarks.traces import assignment
from fairserve.benchmarks.traces.reading import read_trace
from fairserve.engine.simulated.cost_model import COST_MODELS, CostModel, Loop, cost_model
from fairserve.engine.simulated.replay_options import CallReports, ReplayOptions
from fairserve.engine.simulated.traces.model import Trace, TraceError
from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.base.command_line import file_to_write
from fairserve.platform.tenancy.system.parameters import with_checked
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig
from fairserve.throttling.base import Limits

ARRIVALS = "recorded, once, even:RATE, poisson:RATE (interactions per second)"


def seconds(text: str) -> float:
    """Return a finite time of at least 0 s. Raises ValueError."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(f"{text} is given; allowed: finite, 0 or more")
    return value


_trace, _systems, _workers, _running = (
    partial(Option, rich_help_panel=panel)
    for panel in ("Trace", "Systems", "Workers", "Running and output")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Options of ``fairserve simulate``."""

    trace: Annotated[
        list[Path],
        _trace(metavar="FILE...", help="A trace of any known format; several are mixed."),
    ]
    limit: Annotated[int | None, _trace(min=1, metavar="N", help="The first N interactions.")] = (
        None
    )
    from_s: Annotated[
        float, _trace(parser=seconds, metavar="S", help="Arrivals from this second on.")
    ] = 0.0
    to_s: Annotated[
        float | None, _trace(parser=seconds, metavar="S", help="Arrivals before this second.")
    ] = None
    arrivals: Annotated[str, _trace(metavar="RULE", help=f"One of {ARRIVALS}.")] = "recorded"
    time_scale: Annotated[float | None, _trace(metavar="F", help="Stretch arrivals by F.")] = None
    users: Annotated[int | None, _trace(min=1, metavar="N", help="Assign the runs to N users.")] = (
        None
    )
    user_skew: Annotated[float, _trace(metavar="S", help="Zipf exponent of the users.")] = 0.0
    abusive: Annotated[
        int | None, _trace(min=1, metavar="K", help="Of these users, K that flood.")
    ] = None
    abusive_share: Annotated[float, _trace(metavar="P", help="Their share of the runs.")] = 0.5
    tenants: Annotated[
        int | None, _trace(min=1, metavar="N", help="Assign users to N tenants.")
    ] = None

    system: Annotated[
        list[str] | None,
        _systems(
            metavar="NAME...",
            help=f"One of {', '.join(SYSTEMS.offered)}, rpm-N, or one to compare with "
            "(docs/guide/simulate.md); default: fairserve.",
        ),
    ] = None
    changes: Annotated[
        list[str] | None,
        _systems(
            "--set",
            metavar="KEY=VALUE",
            help="Change an option of all systems, or by NAME:KEY=VALUE of one "
            "(docs/guide/operator.md).",
        ),
    ] = None
    user_rpm: Annotated[
        int | None, _systems(min=1, metavar="N", help="Limit of each user, calls a minute.")
    ] = None
    app_rpm: Annotated[
        int | None, _systems(min=1, metavar="N", help="Limit of each app, calls a minute.")
    ] = None
    retries: Annotated[
        int,
        _systems(
            min=0,
            metavar="N",
            help="Retries of a rejected call, after its Retry-After; its run is aborted then.",
        ),
    ] = 0
    isolation: Annotated[
        Literal["none", "tenant", "app", "user"],
        _systems(help="Scope within which cached prefixes are shared."),
    ] = "none"
    declared: Annotated[
        list[str] | None,
        _systems(
            metavar="APP=FACTOR",
            help="This app's profile is wrong by a factor; those of others are the trace's "
            "own means.",
        ),
    ] = None
    learn_profiles: Annotated[
        bool, _systems("--learn-profiles", help="Learn profiles from the tokens of calls.")
    ] = False

    workers: Annotated[int, _workers(min=1, metavar="N", help="Simulated workers.")] = 1
    model_cost: Annotated[
        str, _workers(metavar="NAME", help=f"{', '.join(COST_MODELS)}, or a JSON file.")
    ] = "a100-llama3-8b"
    loop: Annotated[
        Loop | None,
        _workers(
            help="The worker's loop and memory; paged: as in vLLM. Default: that of the cost model."
        ),
    ] = None
    dispatch_delay_s: Annotated[
        float,
        _workers(parser=seconds, metavar="S", help="Delay from control to the queue of a worker."),
    ] = 0.0

    call_reports: Annotated[
        CallReports,
        _workers(
            help="What workers report of running calls: starts and tokens, starts only (calls that "
            "are not streamed), or nothing before the end."
        ),
    ] = "tokens"

    seed: Annotated[int, _running(min=0, metavar="N", help="Seed of all randomness.")] = 0
    jobs: Annotated[int, _running(min=1, metavar="N", help="Cores to use.")] = 1
    json: Annotated[
        Path | None, _running(parser=file_to_write, metavar="OUT", help="Write all figures.")
    ] = None
    plot: Annotated[
        Path | None, _running(parser=plot_folder, metavar="DIR", help="Draw plots here.")
    ] = None


def trace_of(arguments: Arguments) -> Trace:
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


def systems_of(arguments: Arguments) -> dict[str, SystemConfig]:
    """By name, with the options set. Raises ValueError that names the system or key."""
    systems: dict[str, SystemConfig] = {}
    names = arguments.system or ["fairserve"]
    for name in names:
        options: dict[str, Any] = {}
        for text in arguments.changes or ():
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


def costs_of(arguments: Arguments) -> CostModel:
    """Raises ValueError."""
    costs = cost_model(arguments.model_cost)
    return costs if arguments.loop is None else replace(costs, loop=arguments.loop)


def options_of(arguments: Arguments, trace: Trace) -> ReplayOptions:
    """Raises ValueError."""
    return ReplayOptions(
        workers=arguments.workers,
        seed=arguments.seed,
        dispatch_delay_s=arguments.dispatch_delay_s,
        call_reports=arguments.call_reports,
        retries=arguments.retries,
        isolation=arguments.isolation,
        limits=Limits(arguments.user_rpm, arguments.app_rpm),
        profiles=wrong_profiles(trace, arguments.declared or ()),
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
