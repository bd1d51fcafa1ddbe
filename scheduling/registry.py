"""Local schedulers, feeders, routers and whole systems by name. Unknown names list the known ones.

Here are those that someone would run. The laboratory registers those that exist only to be compared
with (``fairserve.benchmarks.policies.registry``); a server imports it only if one of them is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fairserve.scheduling.base import Feeder, LocalScheduler, Router
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.feeders.fcfs import FcfsFeeder, FcfsOptions
from fairserve.scheduling.feeders.wsc import WscFeeder
from fairserve.scheduling.feeders.wsc_options import WscOptions
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions
from fairserve.scheduling.local.fcfs import Fcfs
from fairserve.scheduling.local.lpm import Lpm, LpmOptions
from fairserve.scheduling.local.vtc import Vtc
from fairserve.scheduling.local.vtc_options import VtcOptions
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.routers.cache_aware import CacheAware, CacheAwareOptions
from fairserve.scheduling.routers.d2lpm import D2lpm
from fairserve.scheduling.routers.d2lpm_options import D2lpmOptions
from fairserve.scheduling.routers.least_loaded import LeastLoaded
from fairserve.scheduling.routers.round_robin import RoundRobin, RoundRobinOptions
from fairserve.scheduling.system import SystemConfig
from fairserve.throttling.registry import Registry

LocalFactory = Callable[..., LocalScheduler]
FeederFactory = Callable[..., Feeder]
RouterFactory = Callable[..., Router]

_COMPARED = "fairserve.benchmarks.policies.registry"
"""Module with what exists only to be compared with. Named, not imported: nothing here depends on it."""


def _local_dlpm(**options: Any) -> LocalScheduler:
    return Dlpm(DlpmOptions(**options))


def _local_vtc(**options: Any) -> LocalScheduler:
    """Return VTC. Predictions by an ``oracle``, or a ``noisy`` one, exist to be compared with."""
    predict = options.get("predict")
    if predict in ("oracle", "noisy"):
        del options["predict"]
        return _VTC_ORACLES[predict](**options)
    return Vtc(VtcOptions(**options))


def _local_lpm(**options: Any) -> LocalScheduler:
    return Lpm(LpmOptions(**options))


def _feeder_fcfs(directory: Directory, locality: Locality, **options: Any) -> Feeder:
    return FcfsFeeder(directory, FcfsOptions(**options))


def _feeder_wsc(directory: Directory, locality: Locality, **options: Any) -> Feeder:
    return WscFeeder(directory, locality, WscOptions(**options))


def _router_least_loaded(locality: Locality) -> Router:
    return LeastLoaded(locality)


def _router_round_robin(locality: Locality, **options: Any) -> Router:
    return RoundRobin(RoundRobinOptions(**options))


def _router_cache_aware(locality: Locality, **options: Any) -> Router:
    return CacheAware(locality, CacheAwareOptions(**options))


def _router_d2lpm(locality: Locality, **options: Any) -> Router:
    return D2lpm(locality, D2lpmOptions(**options))


_VTC_ORACLES: Registry[LocalFactory] = Registry("oracle", {}, f"{_COMPARED}:VTC_ORACLES")

LOCAL_SCHEDULERS: Registry[LocalFactory] = Registry(
    "local scheduler",
    {
        "fcfs": Fcfs,
        "vtc": _local_vtc,
        "lpm": _local_lpm,
        "dlpm": _local_dlpm,
    },
    f"{_COMPARED}:LOCAL_SCHEDULERS",
)
"""Local schedulers by name, as ``factory(**options)``."""

FEEDERS: Registry[FeederFactory] = Registry(
    "feeder",
    {
        "fcfs": _feeder_fcfs,
        "wsc": _feeder_wsc,
    },
    f"{_COMPARED}:FEEDERS",
)
"""Feeders by name, as ``factory(directory, locality, **options)``."""

ROUTERS: Registry[RouterFactory] = Registry(
    "router",
    {
        "round_robin": _router_round_robin,
        "least_loaded": _router_least_loaded,
        "cache_aware": _router_cache_aware,
        "d2lpm": _router_d2lpm,
    },
    f"{_COMPARED}:ROUTERS",
)
"""Routers by name, as ``factory(locality, **options)``."""


def per_client(name: str, local: str, **more: Any) -> SystemConfig:
    """Return a VTC-like local scheduler behind per-client round robin (VTC+RR of the DLPM paper)."""
    turn = {"per_client": True}
    return SystemConfig(name, "none", "fcfs", "round_robin", local, router_options=turn, **more)


_SYSTEMS = (
    SystemConfig("fcfs", "none", "fcfs", "least_loaded", "fcfs"),
    per_client("vtc", "vtc"),
    per_client("vtc-predict", "vtc", local_options={"predict": "mean"}),
    per_client("vtc-weighted", "vtc", feeder_options={"weighted": True}),
    SystemConfig("lpm", "none", "fcfs", "round_robin", "lpm"),
    SystemConfig("cache-aware", "none", "fcfs", "cache_aware", "lpm"),
    SystemConfig("d2lpm", "none", "fcfs", "d2lpm", "dlpm"),
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


class _Systems(Registry[SystemConfig]):
    """Systems by name, and ``rpm-<N>`` for every positive N (N calls per user and minute)."""

    def __getitem__(self, name: str) -> SystemConfig:
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

    @property
    def offered(self) -> tuple[str, ...]:
        """Return the names of the systems that someone would run, with an example of ``rpm-<N>``."""
        return (*super().offered, "rpm-20")

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()
        yield "rpm-20"


SYSTEMS: Registry[SystemConfig] = _Systems(
    "system", {s.name: s for s in _SYSTEMS}, f"{_COMPARED}:SYSTEMS"
)
