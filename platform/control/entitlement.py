"""Service that clients are entitled to beside one another, as the system in force counts it.

A client's share of all follows its tenant's levels (:class:`EntitledShares`). Control measures service
in tokens (:class:`Linear`), WSC in typical calls: there a share is multiplied by what a typical call of
the client's app uses, the mean over the stages of its profile. What clients were served over this number
can be compared.
"""

from __future__ import annotations

from collections.abc import Collection
from statistics import fmean

from fairserve.interactions.profiles.profile import AppProfile
from fairserve.platform.control.messages import Client, Entitlements
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.fairness.cost import Linear
from fairserve.scheduling.fairness.level_weights import EntitledShares
from fairserve.scheduling.feeders.wsc_options import WscOptions

_SERVICE = Linear()


def entitlements(dispatcher: Dispatcher, clients: Collection[Client]) -> Entitlements:
    """Return what each of these clients is entitled to among them.

    O(clients * levels + apps * stages).
    """
    weights = {client: dispatcher.directory.weights(*client) for client in clients}
    return Entitlements(
        EntitledShares(weights, dispatcher.levels),
        _typical_service(dispatcher, {app for _, app, _ in clients}),
    )


def _typical_service(dispatcher: Dispatcher, apps: Collection[str]) -> dict[str, float]:
    system = dispatcher.system
    slices = system.feeder == "wsc" and WscOptions(**system.feeder_options).currency == "slices"
    profile = dispatcher.directory.profile
    return {app: _typical_call(profile(app)) if slices else 1.0 for app in apps}


def _typical_call(profile: AppProfile) -> float:
    wp, wq = _SERVICE.wp, _SERVICE.wq
    return fmean(
        wp * (stage.input_tokens + stage.system_tokens) + wq * stage.output_tokens
        for stage in profile.stages
    )
