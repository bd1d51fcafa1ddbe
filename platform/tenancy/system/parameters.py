"""Parameters of a system: value, default, unit and description of each, and checks of changes.

Names are those of ``SystemConfig.with_options``: ``high_watermark``, or ``local.quantum`` for an
option of a policy. Operators set those in :data:`PUBLIC`; the others are constants of the algorithms,
which only simulations and benchmarks change. Types and defaults are read from the policies' options.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fairserve.platform.base.removed_names import LABORATORY_PARAMETER
from fairserve.platform.tenancy.system.settings import TuningSettings
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.dispatch.model_pool import check_feeder
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.registry import FEEDERS, LOCAL_SCHEDULERS, ROUTERS, SYSTEMS
from fairserve.scheduling.system import OWN_OPTIONS, SystemConfig
from fairserve.throttling.registry import THROTTLES

PUBLIC: Mapping[str, tuple[str, str]] = {
    "high_watermark": (
        "demand / KV capacity",
        "Load at which an overload begins. Lower it to reject new runs sooner and keep queues short.",
    ),
    "low_watermark": (
        "demand / KV capacity",
        "Load at which an overload ends, at most high_watermark. Change it together with that one.",
    ),
    "immunity_factor": (
        "longest usual runs",
        "Multiple of its app's longest usual run, in calls or tokens, beyond which a run is throttled. "
        "Raise it if honest runs differ much in length.",
    ),
    "throttle.window_s": (
        "s",
        "Window in which calls are counted against a limit. Shorten it to allow smaller bursts.",
    ),
    "throttle.limit": (
        "calls / window",
        "Common limit of all apps; null: the limit of each app. Set it for one limit for all apps.",
    ),
    "throttle.user_limit": (
        "calls / window",
        "Limit of a user in all apps of its tenant together, under overload; null: no such limit. Set "
        "it if users spread their calls over many apps.",
    ),
    "background_calls": (
        "calls",
        "Calls of batches that a worker may have at a time. Raise it for workers that run hundreds of "
        "sequences at once.",
    ),
    "levels": (
        "",
        "Levels with shares: user, tenant > user, or tenant > app > user. Tenants may have their own. "
        "Change it if tenants or apps, not users, have agreed shares.",
    ),
    "newcomers": (
        "",
        "Users without a history in an app: own gives each its own share at once, shared gives all such "
        "users of an app one share together. Choose shared if anybody can invent users.",
    ),
    "resident_share": (
        "share of the KV cache",
        "Room for the prefixes of runs in progress; a run begins once its own fits. null: it begins "
        "when its call is chosen. Lower it if workers evict the prefixes of running agents.",
    ),
    "hold_s": (
        "s",
        "Time after which a run held for want of room is passed only by what fits beside it; before, "
        "also by runs that are expected to end sooner. Shorten it if large runs wait too long.",
    ),
    "feeder.gamma": (
        "per token",
        "Weight of output tokens; an input token has the weight 1. Raise it if decoding is what the "
        "workers lack time for.",
    ),
    "feeder.weight_cap": (
        "",
        "Cap of an app's typical call, as a multiple of the median of the tenant's other apps in use; "
        "inf: no cap. Set it if work should be shared rather than calls.",
    ),
    "router.quantum": (
        "weighted tokens",
        "Service that a client gets at a worker per refill; null adapts to the observed prompts. "
        "Lower it for stricter fairness, raise it for more cache hits.",
    ),
    "local.quantum": (
        "weighted tokens",
        "Service that a client gets per refill inside a worker. Lower it for stricter fairness, raise "
        "it for more throughput.",
    ),
}
"""Unit, and meaning with the reason to change it, of the parameters that operators set."""


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
    infinity, which JSON lacks. Raises ValueError for an unknown system, a parameter that operators
    cannot set, or a value of a wrong type.
    """
    known = _own_parameters(system)
    options: dict[str, Any] = {}
    if system == settings.system:
        options |= settings.system_options
    options |= parameters
    for name in options:
        if name in known and name not in PUBLIC:
            raise ValueError(f"{name}: {LABORATORY_PARAMETER}")
    public = {name: known[name] for name in PUBLIC if name in known}
    return {name: _checked(name, value, public) for name, value in options.items()}


def system_config(
    settings: TuningSettings, system: str, parameters: Mapping[str, Any]
) -> SystemConfig:
    """Return the checked configuration of a system under these settings and parameters.

    Raises ValueError naming the parameter that is unknown or has a value that is not allowed.
    """
    return with_checked(_base(system), effective_options(settings, system, parameters))


def configured_system(settings: TuningSettings) -> SystemConfig:
    """Return the system that the settings name, with its options.

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
    """Return the parameters for operators: the value in force, and the default of the system itself."""
    defaults = _own_parameters(system)
    values = public_parameters(system_config(settings, system, parameters))
    return [
        Parameter(name, value, defaults[name][0], *PUBLIC[name])
        for name, (value, _) in values.items()
    ]


def public_parameters(config: SystemConfig) -> dict[str, tuple[Any, Any]]:
    """Return value and type of the parameters that operators set."""
    found = parameters_of(config)
    return {name: found[name] for name in PUBLIC if name in found}


def _base(system: str) -> SystemConfig:
    try:
        config: SystemConfig = SYSTEMS[system]
    except KeyError as error:
        raise ValueError(str(error.args[0])) from error
    if config.simulated_only:
        raise ValueError(
            f"system {system!r} needs the true output lengths: it can only be simulated"
        )
    return config


@lru_cache(128)
def _own_parameters(system: str) -> Mapping[str, tuple[Any, Any]]:
    """Return value and type of every parameter of a system without changes."""
    return MappingProxyType(parameters_of(_base(system)))


def parameters_of(config: SystemConfig) -> dict[str, tuple[Any, Any]]:
    """Return value and type of every parameter, read from the policies of the configuration.

    The policies are built, empty and without a dispatcher: 0.1 ms. Raises ValueError for a value that a
    policy does not allow.
    """
    locality = Locality(0)
    feeder = FEEDERS[config.feeder](Directory(), locality, **config.feeder_options)
    check_feeder(config, feeder)
    parts = {
        "throttle": THROTTLES[config.throttle](**config.throttle_options),
        "feeder": feeder,
        "router": ROUTERS[config.router](locality, **config.router_options),
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
