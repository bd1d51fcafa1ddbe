"""The state of one client in control: weights, limits, and its counters in every model's pool.

Read only, on the event loop. Cost: O(models * levels), and the workers of a model for the credits.
"""

from __future__ import annotations

from fairserve.interactions.call import owner_path
from fairserve.platform.control.messages import Client, ClientState, LevelView
from fairserve.scheduling.dispatch.dispatcher import Dispatcher


def client_state(dispatcher: Dispatcher, client: Client) -> ClientState:
    """Return the weights, limits and counter of a client as they are now."""
    directory = dispatcher.directory
    tenant, app, user = client
    tenant_weight, app_weight, user_weight = directory.weights(tenant, app, user)
    limits = directory.limits(app, tenant, user)
    return ClientState(
        tenant_weight=tenant_weight,
        app_weight=app_weight,
        user_weight=user_weight,
        weight=directory.weight(tenant, app, user),
        blocked=directory.blocked(tenant, user),
        user_rpm=limits.user_rpm,
        app_rpm=limits.app_rpm,
        counter=_counter(dispatcher, client),
    )


def client_levels(dispatcher: Dispatcher, client: Client) -> list[LevelView]:
    """Return the counters and credits of each level of a client's path, model by model."""
    path = owner_path(*client, dispatcher.levels(client[0]))
    return [
        LevelView(
            model=model,
            path=path[:length],
            counter=pool.feeder.counter(path[:length]),
            least_counter=pool.feeder.least_counter(path[: length - 1]),
            credits=dict(pool.router.credits(path[:length])),
        )
        for model, pool in dispatcher.pools.items()
        for length in range(1, len(path) + 1)
    ]


def _counter(dispatcher: Dispatcher, client: Client) -> float | None:
    path = owner_path(*client, dispatcher.levels(client[0]))
    above = []
    for pool in dispatcher.pools.values():
        least = pool.feeder.least_counter(path[:-1])
        counter = None if least is None else pool.feeder.counter(path)
        if least is not None and counter is not None:
            above.append(counter - least)
    return max(above, default=None)
