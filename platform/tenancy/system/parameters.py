"""Parameters of a system: value, default, unit and description of each, and checks of changes.

Names are those of ``SystemConfig.with_options``: ``high_watermark``, or ``feeder.max_bypass`` for an
option of a policy. Types and defaults are read from the policies' option classes, so new options appear
without a change here; a test requires their descriptions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fairserve.platform.tenancy.system.settings import TuningSettings
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import LOCAL_SCHEDULERS, SYSTEMS
from fairserve.scheduling.system import OWN_OPTIONS, SystemConfig

DESCRIPTIONS: Mapping[str, tuple[str, str]] = {
    "feed_window": (
        "share of the KV cache",
        "Tokens that may be queued at or in transit to a worker; null dispatches calls at once.",
    ),
    "resident_share": (
        "share of the KV cache",
        "Room for the prefixes of runs in progress; a run begins once its own fits. null: it begins "
        "when its call is chosen.",
    ),
    "hold_s": (
        "s",
        "Time after which a run held for want of room is passed only by what fits beside it; before, "
        "also by runs that are expected to end sooner.",
    ),
    "high_watermark": ("demand / KV capacity", "Load at which an overload begins."),
    "low_watermark": ("demand / KV capacity", "Load at which an overload ends."),
    "immunity_factor": (
        "longest usual runs",
        "Multiple of its app's longest usual run, in calls or tokens, beyond which a run is throttled.",
    ),
    "immunity_rule": (
        "",
        "The longest usual run: the 99th percentile of the app's runs (p99; until 50 are known the "
        "declared one, at most 100 calls), or the run that its profile expects.",
    ),
    "worker_silence_s": ("s", "Time without a report after which a worker counts as lost."),
    "background_window": (
        "share of a worker",
        "Part of its KV cache and of its slots that calls of batches may hold, counted with max_tokens.",
    ),
    "background_calls": ("calls", "Calls of batches that a worker may have at a time."),
    "levels": (
        "",
        "Levels with shares: user, tenant > user, or tenant > app > user. Tenants may have their own.",
    ),
    "newcomers": (
        "",
        "Users without a history in an app: own gives each its own share at once, shared gives all such "
        "users of an app one share together.",
    ),
    "newcomer_slices": ("typical calls", "Service after which a user counts as having a history."),
    "newcomer_growth_s": (
        "s",
        "Time in which the number of an app's users with a history grows at most 2.7-fold; 0: no bound.",
    ),
    "throttle.window_s": ("s", "Window in which calls are counted against a limit."),
    "throttle.user_limit": (
        "calls / window",
        "Limit of a user in all apps of its tenant together, under overload; null: no such limit.",
    ),
    "throttle.limit": ("calls / window", "Common limit of all apps; null: the limit of each app."),
    "throttle.scope": ("", "Subject of the limit: user, app or both."),
    "throttle.window": ("", "sliding counts the last seconds, fixed restarts at each window."),
    "feeder.charge": ("", "Time of a call's charge: expected at its selection, finish at its end."),
    "feeder.currency": (
        "",
        "Unit of the counters: slices of the apps' typical calls, or tokens.",
    ),
    "feeder.interaction_priority": ("", "Whether calls of runs in progress go first."),
    "feeder.in_progress": (
        "",
        "Definition of a run in progress: run from its first dispatched call to its end, batch only "
        "while it has a call at a worker.",
    ),
    "feeder.interaction_slack": (
        "typical calls",
        "Maximum lead over the least served user within which runs in progress go first.",
    ),
    "feeder.locality_slack": (
        "typical calls",
        "Maximum lead over the least served user within which the best cached prompt goes first.",
    ),
    "feeder.locality_gain": (
        "",
        "Whether that lead shrinks if the best cached prompt saves little.",
    ),
    "feeder.max_bypass": ("calls", "Times that the oldest call may be passed over; 0: no bound."),
    "feeder.run_order": (
        "",
        "Queued call of a run that goes first: critical_path takes the one with the longest path to the "
        "run's end, if its program declares it; arrival the oldest.",
    ),
    "feeder.weight_cap": (
        "",
        "Cap of an app's typical call, as a multiple of the median of the tenant's other apps in use; "
        "inf: no cap.",
    ),
    "feeder.declared_trust": (
        "calls",
        "Typical calls that a tenant may gain by declared profiles that no calls have confirmed; "
        "inf: no bound.",
    ),
    "feeder.cached_weight": (
        "share",
        "Charge of a cached prompt token relative to a computed one.",
    ),
    "feeder.charge_cached": (
        "",
        "Overrides cached_weight: true is 1, false is 0, null is no override.",
    ),
    "feeder.normalise": ("", "Unit of cost: an expected call, or an expected interaction."),
    "feeder.alpha": ("per token", "Weight of input tokens."),
    "feeder.beta": ("per token", "Weight of system tokens."),
    "feeder.gamma": ("per token", "Weight of output tokens."),
    "router.quantum": (
        "weighted tokens",
        "Service that a client gets at a worker per refill; null adapts to the observed prompts.",
    ),
    "router.quantum_prompts": ("prompts", "Mean prompts that this service corresponds to."),
    "router.level_quantum": (
        "",
        "Quantum of a tenant: clients multiplies it by its users with running calls, or equal.",
    ),
    "router.we": ("per token", "Weight of prompt tokens that are computed."),
    "router.wq": ("per token", "Weight of output tokens."),
    "local.quantum": ("weighted tokens", "Service that a client gets per refill inside a worker."),
    "local.cached_weight": (
        "share",
        "Charge of a cached prompt token relative to a computed one.",
    ),
    "local.we": ("per token", "Weight of prompt tokens that are computed."),
    "local.wq": ("per token", "Weight of output tokens."),
    "local.wp": ("per token", "Weight of prompt tokens."),
    "local.cost": ("", "Charge of a call: linear, extend (uncached prompt) or profiled."),
    "local.lift_when_idle": (
        "",
        "Whether a client that finds an empty queue is lifted to the counter of the last one to leave.",
    ),
    "local.predict": (
        "",
        "Predicted output charged at selection: mean of the last five, the app's profile (profile), or "
        "null.",
    ),
    "local.noise": ("share", "Error of the noisy oracle; for simulations."),
    "local.seed": ("", "Seed of the noisy oracle; for simulations."),
    "local.remembered_clients": ("clients", "Idle clients whose counters are kept."),
    "local.when_full": ("", "At a call that does not fit: stop, or skip it."),
    "feeder.quantum": ("weighted tokens", "Service that a client gets per refill."),
    "feeder.we": ("per token", "Weight of prompt tokens that are computed."),
    "feeder.wq": ("per token", "Weight of output tokens."),
    "feeder.weighted": ("", "Whether users' weights reach the workers' scheduler."),
    "router.per_client": ("", "Whether each client has its own turns."),
    "router.max_clients": ("clients", "Clients whose turns are remembered."),
    "router.match_threshold": (
        "share",
        "Cached share of a prompt above which its worker is chosen.",
    ),
    "router.balance_abs": (
        "calls",
        "Difference of loads that counts as unbalanced; null: none does.",
    ),
    "router.balance_rel": ("", "Ratio of loads that counts as unbalanced."),
    "router.exploit_share": ("share", "Cached share of a prompt above which its worker is chosen."),
    "router.window_s": ("s", "Time for which a call counts towards a worker's load."),
    "router.window_calls": ("calls", "Calls that count towards the load at most."),
    "router.token_s": ("s", "Time per output token before any measurement."),
    "router.medians_of": ("calls", "Calls of which the time per token is the median."),
    "router.output_tokens": ("tokens", "Expected output before any observation."),
    "router.rebalance_after": ("calls / worker", "Calls before the first rebalancing."),
    "router.rebalance_ratio": ("", "Ratio of loads that is rebalanced; null never is."),
    "router.eviction": ("", "Whether the tokens that a call would evict count as its cost."),
    "router.prefill_s": ("s", "Prefill time: constant part."),
    "router.prefill_token_s": ("s / token", "Prefill time: per computed token."),
    "router.prefill_context_s": ("s / token", "Prefill time: per token of context."),
    "router.prefill_product_s": ("s / token^2", "Prefill time: per computed token and context."),
    "local.refill_when_stuck": (
        "",
        "Whether a client out of credit may borrow when no call of those in credit fits.",
    ),
    "local.stuck_advance": (
        "tokens",
        "Debt in weighted tokens up to which it may borrow; it widens the fairness bounds.",
    ),
    "local.max_bypass": ("calls", "Times that a call that does not fit may be passed over."),
}
"""Unit and meaning by parameter."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a system with its present value."""

    name: str
    value: Any
    default: Any
    unit: str
    description: str


def effective_options(
    settings: TuningSettings, system: str, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all options for ``SYSTEMS[system].with_options``: settings, and parameters over them.

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
    """Return the checked configuration of a system under these settings and parameters.

    Raises ValueError naming the parameter that is unknown or has a value that is not allowed.
    """
    return with_checked(_base(settings, system), effective_options(settings, system, parameters))


def configured_system(settings: TuningSettings) -> SystemConfig:
    """Return the system that the settings name, with its options and ``local_scheduler``.

    Raises ValueError naming what is unknown, and what is known.
    """
    return system_config(settings, settings.system, {})


def with_checked(base: SystemConfig, options: Mapping[str, Any]) -> SystemConfig:
    """Return a system with some parameters changed; ``"inf"`` stands for infinity.

    Raises ValueError naming the parameter that is unknown or has a value that is not allowed.
    """
    known = parameters_of(base)
    config = base.with_options({name: _checked(name, options[name], known) for name in options})
    parameters_of(config)  # the options of a policy are checked when it is built
    return config


def describe(
    settings: TuningSettings, system: str, parameters: Mapping[str, Any]
) -> list[Parameter]:
    """Return every parameter of a system: the value in force, and the default of the system itself."""
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
    """Return value and type of every parameter, read from the parts that the configuration builds."""
    dispatcher = Dispatcher(config)
    parts = {
        "throttle": dispatcher.admission.throttle,
        "feeder": dispatcher.first.feeder,
        "router": dispatcher.first.router,
        "local": LOCAL_SCHEDULERS[config.local](**config.local_options),
    }
    hints = _hints(SystemConfig)
    found = {name: (getattr(config, name), hints[name]) for name in OWN_OPTIONS}
    for part, policy in parts.items():
        options: Any = getattr(policy, "options", None)
        if options is not None and is_dataclass(options):
            hints = _hints(options.__class__)
            for option in fields(options):
                found[f"{part}.{option.name}"] = (getattr(options, option.name), hints[option.name])
    return found


@cache
def _hints(options: Any) -> dict[str, Any]:
    """Return the types of a class's fields, which take a millisecond to resolve."""
    return get_type_hints(options)


_adapter = cache(TypeAdapter)


def _checked(name: str, value: Any, known: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return the value in its type; the option classes check ranges, but types only by accident."""
    if name not in known:
        raise ValueError(f"unknown parameter {name!r}; this system has: {', '.join(known)}")
    if value == "inf":
        value = math.inf
    try:
        checked = _adapter(known[name][1]).validate_python(value, strict=True)
    except ValidationError as error:
        raise ValueError(f"{name}: {error.errors(include_input=False)[0]['msg']}") from error
    if isinstance(checked, float) and math.isnan(checked):
        raise ValueError(f"{name} is not a number")
    return checked
