"""Every parameter of a system: its value, default, unit and meaning, and the check of a change.

The names are those of ``SystemConfig.with_options``: ``high_watermark``, or ``feeder.max_bypass``
for an option of a policy. Types and defaults are read from the policies' option classes, so a new
option appears here by itself; a test asks for its description.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fairserve.platform.tuning.settings import TuningSettings
from fairserve.scheduling.dispatcher import Dispatcher
from fairserve.scheduling.registry import LOCAL_SCHEDULERS, SYSTEMS
from fairserve.scheduling.system import OWN_OPTIONS, SystemConfig

DESCRIPTIONS: Mapping[str, tuple[str, str]] = {
    "feed_window": (
        "share of the KV cache",
        "What may be queued at a worker or on its way to it; null hands calls on at once.",
    ),
    "hit_share": (
        "share of the prompt",
        "A worker whose window is full still takes a call of a run under way if it has so much of its "
        "prompt cached; null: none.",
    ),
    "high_watermark": ("demand / KV capacity", "Load at which an overload begins."),
    "low_watermark": ("demand / KV capacity", "Load at which an overload ends."),
    "immunity_factor": (
        "longest usual runs",
        "A run may be throttled beyond so many times its app's longest usual run, in calls or tokens.",
    ),
    "immunity_rule": (
        "",
        "Which run that is: the 99th percentile of the app's runs (p99; until 50 are known what is "
        "declared, at most 100 calls), or the one that its profile expects.",
    ),
    "worker_silence_s": ("s", "A worker that is silent for so long counts as lost."),
    "levels": (
        "",
        "Who gets a share: user, tenant > user, or tenant > app > user. Tenants may have their own.",
    ),
    "newcomers": (
        "",
        "Users that an app has not shown before: own gives each a share at once, shared one to all of "
        "an app together until they have a history.",
    ),
    "newcomer_slices": ("typical calls", "Service that a history costs a user."),
    "newcomer_growth_s": (
        "s",
        "Time in which an app's users with a history grow at most 2.7-fold; 0 is no bound.",
    ),
    "throttle.window_s": ("s", "Window in which calls are counted against a limit."),
    "throttle.limit": ("calls / window", "One limit for all; null takes each app's own."),
    "throttle.scope": ("", "Whom the limit counts: user, app or both."),
    "throttle.window": ("", "sliding counts the last seconds, fixed starts anew at each window."),
    "feeder.charge": ("", "expected charges a call when it is selected, finish at its end."),
    "feeder.currency": (
        "",
        "What a counter counts: slices of typical calls of the apps, or tokens, the same for all.",
    ),
    "feeder.interaction_priority": ("", "Whether calls of runs under way go first."),
    "feeder.in_progress": (
        "",
        "Which runs count as in progress: run takes those of which a call was dispatched until they "
        "end, batch those of which a call is at a worker now.",
    ),
    "feeder.interaction_slack": (
        "typical calls",
        "Runs under way go first only for users at most so far above the least served.",
    ),
    "feeder.locality_slack": (
        "typical calls",
        "Among users at most so far above the least served, the best cached prompt goes first.",
    ),
    "feeder.locality_gain": (
        "",
        "Whether that allowance shrinks where the best cached prompt saves little.",
    ),
    "feeder.max_bypass": ("calls", "How often the oldest call may be passed over; 0 is no bound."),
    "feeder.run_priority": (
        "",
        "Which run under way goes first within the slack: progress takes the one expected to need "
        "the fewest calls until its end, arrival that of the least served user.",
    ),
    "feeder.run_order": (
        "",
        "Which queued call of a run goes first: critical_path takes the one with the longest way to the "
        "run's end, where its program declares it; arrival the oldest.",
    ),
    "feeder.weight_cap": (
        "",
        "An app's typical call counts at most so many times the median of the tenant's other apps in "
        "use; inf is no cap.",
    ),
    "feeder.cached_weight": (
        "share",
        "What a cached prompt token counts, of one that is computed.",
    ),
    "feeder.charge_cached": (
        "",
        "Replaces cached_weight: by 1 if true, 0 if false; null does not.",
    ),
    "feeder.normalise": ("", "What costs 1: an expected call, or an expected interaction."),
    "feeder.alpha": ("per token", "Weight of input tokens."),
    "feeder.beta": ("per token", "Weight of system tokens."),
    "feeder.gamma": ("per token", "Weight of output tokens."),
    "router.quantum": (
        "weighted tokens",
        "Service a client gets at a worker per refill; null adapts to the prompts seen.",
    ),
    "router.quantum_prompts": ("prompts", "So many mean prompts are that service."),
    "router.cached_weight": ("share", "What a cached prompt token uses up of that service."),
    "router.charge_cached": (
        "",
        "Replaces cached_weight: by 1 if true, 0 if false; null does not.",
    ),
    "router.level_quantum": (
        "",
        "Quantum of a tenant: clients multiplies it by its users with running calls, or equal.",
    ),
    "router.we": ("per token", "Weight of prompt tokens that are computed."),
    "router.wq": ("per token", "Weight of output tokens."),
    "local.quantum": ("weighted tokens", "Service a client gets per refill inside a worker."),
    "local.cached_weight": ("share", "What a cached prompt token counts, of one that is computed."),
    "local.we": ("per token", "Weight of prompt tokens that are computed."),
    "local.wq": ("per token", "Weight of output tokens."),
    "local.wp": ("per token", "Weight of prompt tokens."),
    "local.cost": ("", "What a call is charged: linear, extend (uncached prompt) or profiled."),
    "local.lift_when_idle": (
        "",
        "Whether a client that finds nobody queued is lifted to the counter of who left last.",
    ),
    "local.predict": (
        "",
        "Charge a predicted output at selection: mean of the last five, what the app's profile says "
        "(profile), or null.",
    ),
    "local.noise": ("share", "Error of the noisy oracle; for simulations."),
    "local.seed": ("", "Seed of the noisy oracle; for simulations."),
    "local.remembered_clients": ("clients", "Idle clients whose counters are kept."),
    "local.when_full": ("", "At a call that does not fit: stop, or skip it."),
    "feeder.quantum": ("weighted tokens", "Service a client gets per refill."),
    "feeder.we": ("per token", "Weight of prompt tokens that are computed."),
    "feeder.wq": ("per token", "Weight of output tokens."),
    "feeder.weighted": ("", "Whether users' weights reach the workers' scheduler."),
    "router.per_client": ("", "Whether each client takes its turns on its own."),
    "router.max_clients": ("clients", "Clients whose turns are remembered."),
    "router.match_threshold": (
        "share",
        "Cached share of a prompt above which its worker is taken.",
    ),
    "router.balance_abs": (
        "calls",
        "Difference of loads that counts as unbalanced; null: none does.",
    ),
    "router.balance_rel": ("", "Ratio of loads that counts as unbalanced."),
    "router.exploit_share": ("share", "Cached share of a prompt above which its worker is taken."),
    "router.window_s": ("s", "How long a call counts towards a worker's load."),
    "router.window_calls": ("calls", "Calls that count towards the load at most."),
    "router.token_s": ("s", "Time per output token before any was measured."),
    "router.medians_of": ("calls", "Calls of which the time per token is the median."),
    "router.output_tokens": ("tokens", "Expected output before any was seen."),
    "router.rebalance_after": ("calls / worker", "Calls before the first rebalancing."),
    "router.rebalance_ratio": ("", "Ratio of loads that is rebalanced; null never is."),
    "router.eviction": ("", "Whether what a call would evict counts as its cost."),
    "router.prefill_s": ("s", "Prefill time: constant part."),
    "router.prefill_token_s": ("s / token", "Prefill time: per computed token."),
    "router.prefill_context_s": ("s / token", "Prefill time: per token of context."),
    "router.prefill_product_s": ("s / token^2", "Prefill time: per computed token and context."),
    "local.refill_when_stuck": (
        "",
        "Whether a client out of credit may run in advance when no call of those in credit fits.",
    ),
    "local.stuck_advance": (
        "tokens",
        "Debt in weighted tokens, below which it may; it widens the fairness bounds.",
    ),
    "local.max_bypass": ("calls", "How often a call that does not fit may be passed over."),
}
"""Unit and meaning by parameter."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a system as it stands."""

    name: str
    value: Any
    default: Any
    unit: str
    description: str


def effective_options(
    settings: TuningSettings, system: str, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """All options for ``SYSTEMS[system].with_options``: settings, and parameters over them.

    The settings' ``system_options`` belong to the settings' own system only. ``"inf"`` stands for
    infinity, which JSON lacks. Raises ValueError for an unknown system, an unknown parameter or a
    value of a wrong type.
    """
    base = _base(settings, system)
    options: dict[str, Any] = {
        "high_watermark": settings.overload_high,
        "low_watermark": settings.overload_low,
        "immunity_factor": settings.immunity_factor,
    }
    if base.feed_window is not None and settings.feed_window is not None:
        options["feed_window"] = settings.feed_window
    if system == settings.system:
        options |= settings.system_options
    options |= parameters
    known = parameters_of(base)
    return {name: _checked(name, value, known) for name, value in options.items()}


def system_config(
    settings: TuningSettings, system: str, parameters: Mapping[str, Any]
) -> SystemConfig:
    """The checked configuration of a system under these settings and parameters.

    Raises ValueError naming the parameter that is unknown or has a value that is not allowed.
    """
    return with_checked(_base(settings, system), effective_options(settings, system, parameters))


def configured_system(settings: TuningSettings) -> SystemConfig:
    """Return the system that the settings name, with its options and ``local_scheduler``.

    Raises ValueError naming what is unknown, and what is known.
    """
    return system_config(settings, settings.system, {})


def with_checked(base: SystemConfig, options: Mapping[str, Any]) -> SystemConfig:
    """A system with some parameters changed; ``"inf"`` stands for infinity.

    Raises ValueError naming the parameter that is unknown or has a value that is not allowed.
    """
    known = parameters_of(base)
    config = base.with_options({name: _checked(name, options[name], known) for name in options})
    parameters_of(config)  # the options of a policy are checked when it is built
    return config


def describe(
    settings: TuningSettings, system: str, parameters: Mapping[str, Any]
) -> list[Parameter]:
    """Every parameter of a system: the value in force, and the default of the system itself."""
    defaults = parameters_of(_base(settings, system))
    return [
        Parameter(name, value, defaults[name][0], *DESCRIPTIONS.get(name, ("", "")))
        for name, (value, _) in parameters_of(system_config(settings, system, parameters)).items()
    ]


def _base(settings: TuningSettings, system: str) -> SystemConfig:
    try:
        config: SystemConfig = SYSTEMS[system]
        if config.simulated_only:
            raise ValueError(
                f"system {system!r} needs the true output lengths: it can only be simulated"
            )
        if settings.local_scheduler and settings.local_scheduler != config.local:
            LOCAL_SCHEDULERS[settings.local_scheduler]
            config = replace(config, local=settings.local_scheduler, local_options={})
    except KeyError as error:
        raise ValueError(str(error.args[0])) from error
    return config


def parameters_of(config: SystemConfig) -> dict[str, tuple[Any, Any]]:
    """Value and type of every parameter, read from the parts that the configuration builds."""
    dispatcher = Dispatcher(config)
    parts = {
        "throttle": dispatcher.admission.throttle,
        "feeder": dispatcher.first.feeder,
        "router": dispatcher.first.router,
        "local": LOCAL_SCHEDULERS[config.local](**config.local_options),
    }
    hints = get_type_hints(SystemConfig)
    found = {name: (getattr(config, name), hints[name]) for name in OWN_OPTIONS}
    for part, policy in parts.items():
        options = getattr(policy, "options", None)
        if options is not None and is_dataclass(options):
            hints = get_type_hints(type(options))
            for option in fields(options):
                found[f"{part}.{option.name}"] = (getattr(options, option.name), hints[option.name])
    return found


def _checked(name: str, value: Any, known: Mapping[str, tuple[Any, Any]]) -> Any:
    """The value in its type; the option classes check ranges, and a type only by accident."""
    if name not in known:
        raise ValueError(f"unknown parameter {name!r}; this system has: {', '.join(known)}")
    if value == "inf":
        value = math.inf
    try:
        checked = TypeAdapter(known[name][1]).validate_python(value, strict=True)
    except ValidationError as error:
        raise ValueError(f"{name}: {error.errors(include_input=False)[0]['msg']}") from error
    if isinstance(checked, float) and math.isnan(checked):
        raise ValueError(f"{name} is not a number")
    return checked
