"""Local schedulers, feeders, routers and whole systems by name. Unknown names list the known ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fairserve.scheduling.base import Feeder, LocalScheduler, Router
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.feeders.central_dlpm import CentralDlpm, CentralDlpmOptions
from fairserve.scheduling.feeders.fcfs import FcfsFeeder, FcfsOptions
from fairserve.scheduling.feeders.round_robin import RoundRobinFeeder
from fairserve.scheduling.feeders.wsc import WscFeeder
from fairserve.scheduling.feeders.wsc_options import PAPER as WSC_PAPER
from fairserve.scheduling.feeders.wsc_options import VTC, WscOptions
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions
from fairserve.scheduling.local.drr import Drr, DrrOptions
from fairserve.scheduling.local.fcfs import Fcfs
from fairserve.scheduling.local.lcf import Lcf, LcfOptions
from fairserve.scheduling.local.lpm import Lpm, LpmOptions
from fairserve.scheduling.local.preble_groups import PrebleGroups, PrebleGroupsOptions
from fairserve.scheduling.local.vtc import Vtc
from fairserve.scheduling.local.vtc_options import VtcOptions
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.routers.cache_aware import CacheAware, CacheAwareOptions
from fairserve.scheduling.routers.d2lpm import D2lpm
from fairserve.scheduling.routers.d2lpm_options import D2lpmOptions
from fairserve.scheduling.routers.least_loaded import LeastLoaded
from fairserve.scheduling.routers.preble import Preble
from fairserve.scheduling.routers.preble_options import PrebleOptions
from fairserve.scheduling.routers.round_robin import RoundRobin, RoundRobinOptions
from fairserve.scheduling.system import SystemConfig
from fairserve.throttling.registry import Registry

LocalFactory = Callable[..., LocalScheduler]
FeederFactory = Callable[..., Feeder]
RouterFactory = Callable[..., Router]


def _local_dlpm(**options: Any) -> LocalScheduler:
    return Dlpm(DlpmOptions(**options))


def _local_vtc(**options: Any) -> LocalScheduler:
    return Vtc(VtcOptions(**options))


def _local_lcf(**options: Any) -> LocalScheduler:
    return Lcf(LcfOptions(**options))


def _local_drr(**options: Any) -> LocalScheduler:
    return Drr(DrrOptions(**options))


def _local_lpm(**options: Any) -> LocalScheduler:
    return Lpm(LpmOptions(**options))


def _local_preble_groups(**options: Any) -> LocalScheduler:
    return PrebleGroups(PrebleGroupsOptions(**options))


def _feeder_fcfs(directory: Directory, locality: Locality, **options: Any) -> Feeder:
    return FcfsFeeder(directory, FcfsOptions(**options))


def _feeder_round_robin(directory: Directory, locality: Locality) -> Feeder:
    return RoundRobinFeeder()


def _feeder_central_dlpm(directory: Directory, locality: Locality, **options: Any) -> Feeder:
    return CentralDlpm(directory, locality, CentralDlpmOptions(**options))


def _feeder_wsc(directory: Directory, locality: Locality, **options: Any) -> Feeder:
    return WscFeeder(directory, locality, WscOptions(**options))


def _feeder_vtc(directory: Directory, locality: Locality, **options: Any) -> Feeder:
    return WscFeeder(directory, locality, replace(VTC, **options))


def _router_least_loaded(locality: Locality) -> Router:
    return LeastLoaded(locality)


def _router_round_robin(locality: Locality, **options: Any) -> Router:
    return RoundRobin(RoundRobinOptions(**options))


def _router_cache_aware(locality: Locality, **options: Any) -> Router:
    return CacheAware(locality, CacheAwareOptions(**options))


def _router_preble(locality: Locality, **options: Any) -> Router:
    return Preble(locality, PrebleOptions(**options))


def _router_d2lpm(locality: Locality, **options: Any) -> Router:
    return D2lpm(locality, D2lpmOptions(**options))


LOCAL_SCHEDULERS: Mapping[str, LocalFactory] = Registry(
    "local scheduler",
    {
        "fcfs": Fcfs,
        "lcf": _local_lcf,
        "vtc": _local_vtc,
        "drr": _local_drr,
        "lpm": _local_lpm,
        "dlpm": _local_dlpm,
        "preble_groups": _local_preble_groups,
    },
)
"""Local schedulers by name, as ``factory(**options)``."""

FEEDERS: Mapping[str, FeederFactory] = Registry(
    "feeder",
    {
        "fcfs": _feeder_fcfs,
        "vtc": _feeder_vtc,
        "wsc": _feeder_wsc,
        "central_dlpm": _feeder_central_dlpm,
        "round_robin": _feeder_round_robin,
    },
)
"""Feeders by name, as ``factory(directory, locality, **options)``."""

ROUTERS: Mapping[str, RouterFactory] = Registry(
    "router",
    {
        "round_robin": _router_round_robin,
        "least_loaded": _router_least_loaded,
        "preble": _router_preble,
        "cache_aware": _router_cache_aware,
        "d2lpm": _router_d2lpm,
    },
)
"""Routers by name, as ``factory(locality, **options)``."""

_PAPER_WSC = {name: getattr(WSC_PAPER, name) for name in WscOptions.__dataclass_fields__}


def _per_client(name: str, local: str, **more: Any) -> SystemConfig:
    """Return a VTC-like local scheduler behind per-client round robin (VTC+RR of the DLPM paper)."""
    turn = {"per_client": True}
    return SystemConfig(name, "none", "fcfs", "round_robin", local, router_options=turn, **more)


_SYSTEMS = (
    SystemConfig("fcfs", "none", "fcfs", "least_loaded", "fcfs"),
    _per_client("lcf", "lcf"),
    _per_client("vtc", "vtc"),
    _per_client("vtc-predict", "vtc", local_options={"predict": "mean"}),
    _per_client("vtc-noisy", "vtc", local_options={"predict": "noisy"}, simulated_only=True),
    _per_client("vtc-oracle", "vtc", local_options={"predict": "oracle"}, simulated_only=True),
    _per_client("vtc-weighted", "vtc", feeder_options={"weighted": True}),
    _per_client("drr", "drr"),
    SystemConfig("lpm", "none", "fcfs", "round_robin", "lpm"),
    SystemConfig("rr-lpm", "none", "fcfs", "round_robin", "lpm"),
    SystemConfig("preble", "none", "fcfs", "preble", "preble_groups"),
    SystemConfig("cache-aware", "none", "fcfs", "cache_aware", "lpm"),
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
    # The fairness policy of the Gateway API Inference Extension's flow control, with its scorer of
    # prefixes; vLLM's own order at the workers.
    SystemConfig("rr-fairness", "none", "round_robin", "cache_aware", "fcfs", feed_window=0.03),
    SystemConfig("dlpm", "none", "fcfs", "d2lpm", "dlpm"),
    SystemConfig("d2lpm", "none", "fcfs", "d2lpm", "dlpm"),
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
    SystemConfig(
        "fairserve",
        "oit",
        "wsc",
        "cache_aware",
        "dlpm",
        feed_window=0.03,
        resident_share=0.9,
        router_options={"match_threshold": 0.0, "balance_abs": 16},
        local_options={"quantum": 250.0},
    ),
)


class _Systems(Registry):
    """Systems by name, and ``rpm-<N>`` for every positive N (N calls per user and minute)."""

    def __getitem__(self, name: str) -> Any:
        kind, _, number = name.partition("-")
        if kind == "rpm" and number.isascii() and number.isdigit() and int(number) >= 1:
            return SystemConfig(
                name,
                "rpm",
                "fcfs",
                "least_loaded",
                "fcfs",
                throttle_options={"limit": int(number)},
            )
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()
        yield "rpm-20"


SYSTEMS: Mapping[str, SystemConfig] = _Systems("system", {s.name: s for s in _SYSTEMS})
