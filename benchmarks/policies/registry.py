"""Policies and systems that exist only to be compared with, by name.

The public registries (:mod:`fairserve.scheduling.registry`) import this module when one of these is
named, so that ``fairserve simulate`` and even ``fairserve serve`` run them like any other. Only the
core is imported here: what a server would load for one of them is small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fairserve.benchmarks.policies.central_dlpm import CentralDlpm, CentralDlpmOptions
from fairserve.benchmarks.policies.drr import Drr, DrrOptions
from fairserve.benchmarks.policies.lcf import Lcf, LcfOptions
from fairserve.benchmarks.policies.preble import Preble
from fairserve.benchmarks.policies.preble_groups import PrebleGroups, PrebleGroupsOptions
from fairserve.benchmarks.policies.preble_options import PrebleOptions
from fairserve.benchmarks.policies.vtc_oracle import VtcOracle, VtcOracleOptions
from fairserve.scheduling.base import Feeder, LocalScheduler, Router
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.feeders.wsc import WscFeeder
from fairserve.scheduling.feeders.wsc_options import PAPER as WSC_PAPER
from fairserve.scheduling.feeders.wsc_options import VTC, WscOptions
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.registry import per_client
from fairserve.scheduling.system import SystemConfig


def _lcf(**options: Any) -> LocalScheduler:
    return Lcf(LcfOptions(**options))


def _vtc_oracle(**options: Any) -> LocalScheduler:
    return VtcOracle(VtcOracleOptions(**options))


def _vtc_noisy(noise: float = 0.5, **options: Any) -> LocalScheduler:
    return VtcOracle(VtcOracleOptions(noise=noise, **options))


def _drr(**options: Any) -> LocalScheduler:
    return Drr(DrrOptions(**options))


def _preble_groups(**options: Any) -> LocalScheduler:
    return PrebleGroups(PrebleGroupsOptions(**options))


def _central_dlpm(directory: Directory, locality: Locality, **options: Any) -> Feeder:
    return CentralDlpm(directory, locality, CentralDlpmOptions(**options))


def _vtc(directory: Directory, locality: Locality, **options: Any) -> Feeder:
    return WscFeeder(directory, locality, replace(VTC, **options))


def _preble(locality: Locality, **options: Any) -> Router:
    return Preble(locality, PrebleOptions(**options))


VTC_ORACLES: Mapping[str, Callable[..., LocalScheduler]] = {
    "oracle": _vtc_oracle,
    "noisy": _vtc_noisy,
}
"""Values of VTC's option ``predict`` that need the true output lengths."""

LOCAL_SCHEDULERS: Mapping[str, Callable[..., LocalScheduler]] = {
    "lcf": _lcf,
    "drr": _drr,
    "preble_groups": _preble_groups,
}

FEEDERS: Mapping[str, Callable[..., Feeder]] = {
    "vtc": _vtc,
    "central_dlpm": _central_dlpm,
}

ROUTERS: Mapping[str, Callable[..., Router]] = {"preble": _preble}

_PAPER_WSC = {name: getattr(WSC_PAPER, name) for name in WscOptions.__dataclass_fields__}

_SYSTEMS = (
    per_client("lcf", "lcf"),
    per_client("vtc-noisy", "vtc", local_options={"predict": "noisy"}, simulated_only=True),
    per_client("vtc-oracle", "vtc", local_options={"predict": "oracle"}, simulated_only=True),
    per_client("drr", "drr"),
    SystemConfig("rr-lpm", "none", "fcfs", "round_robin", "lpm"),
    SystemConfig("preble", "none", "fcfs", "preble", "preble_groups"),
    SystemConfig(
        "cache-aware-vtc", "none", "fcfs", "cache_aware", "vtc", local_options={"cost": "extend"}
    ),
    SystemConfig(
        "central-dlpm",
        "none",
        "central_dlpm",
        "cache_aware",
        "fcfs",
        feed_window=1e-6,  # a worker is open only while nothing waits at it
        router_options={"match_threshold": 0.0, "balance_abs": None},
    ),
    # One worker has no router, so the paper's DLPM is D2LPM there.
    SystemConfig("dlpm", "none", "fcfs", "d2lpm", "dlpm"),
    SystemConfig(
        "fs-w",
        "none",
        "wsc",
        "least_loaded",
        "fcfs",
        feed_window=0.05,
        feeder_options={**_PAPER_WSC, "interaction_priority": False},
    ),
    SystemConfig(
        "fs-wi",
        "oit",
        "wsc",
        "least_loaded",
        "fcfs",
        feed_window=0.05,
        # Read literally, line 31 would give sequential calls no priority, so ``run`` is used as in
        # fs-w.
        feeder_options={**_PAPER_WSC, "in_progress": "run"},
    ),
)

SYSTEMS: Mapping[str, SystemConfig] = {system.name: system for system in _SYSTEMS}
