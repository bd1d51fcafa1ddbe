"""Plans of ``fairserve apply``: their execution gives the declared state, in an order that always works.

The server is a dictionary of objects that rejects what the real one rejects: an app without its tenant,
two aliases of one name, an alias to an alias, two workers of one URL, an alias with the name of a
worker's model, and the deletion of a price that is in force.
"""

from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st

from fairserve.platform.server.apply.declaration import Declaration
from fairserve.platform.server.apply.plan import (
    IDLE_TIMEOUT,
    MANAGER,
    Key,
    ServerState,
    objects_of,
    plan,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MODELS = ("m", "n", "o")
names = st.sampled_from(["a", "b", "c"])
weights = st.sampled_from([1.0, 2.0])
quotas = st.fixed_dictionaries(
    {},
    optional={
        "rpm_limit": st.integers(1, 3),
        "max_budget": st.just(5),
        "budget_duration": st.just("1d"),
    },
).filter(lambda quota: ("max_budget" in quota) <= ("budget_duration" in quota))
profiles = st.builds(
    lambda output, idle: {
        "stages": [{"input_tokens": 9, "output_tokens": output}],
        "idle_timeout_s": idle,
    },
    st.integers(1, 2),
    st.sampled_from([None, 60, 90]),
)
apps = st.fixed_dictionaries(
    {"profile": profiles},
    optional={
        "weight": weights,
        "contract": quotas,
        "limits": st.fixed_dictionaries({}, optional={"user_rpm": st.integers(1, 2)}),
        "user_headers": st.sampled_from([[], ["x-user-id"], ["x-employee"]]),
    },
)
webhooks = st.fixed_dictionaries(
    {
        "events": st.lists(
            st.sampled_from(["budget.reached", "alarm.opened"]), min_size=1, max_size=2
        )
    }
)
tenants = st.fixed_dictionaries(
    {},
    optional={
        "weight": weights,
        "contract": quotas,
        "apps": st.dictionaries(names, apps, max_size=2),
        "users": st.dictionaries(names, st.fixed_dictionaries({"weight": weights}), max_size=2),
        "webhooks": st.dictionaries(
            names.map(lambda name: f"https://{name}.org/?token=1"), webhooks, max_size=2
        ),
    },
)
prices = st.lists(
    st.fixed_dictionaries(
        {
            "model": st.sampled_from(MODELS),
            "input": st.integers(0, 2),
            "output": st.integers(0, 2),
            "valid_from": st.sampled_from([None, "2029-01-01T00:00:00Z", "2031-01-01T00:00:00Z"]),
        }
    ),
    max_size=4,
    unique_by=lambda price: (price["model"], price["valid_from"]),
)
aliases = st.dictionaries(
    st.sampled_from(MODELS),
    st.dictionaries(st.sampled_from(MODELS), weights, min_size=1),
    max_size=3,
).map(
    lambda found: {
        name: {target: weight for target, weight in targets.items() if target not in found}
        for name, targets in found.items()
        if set(targets) - set(found)
    }
)
workers = st.dictionaries(
    names,
    st.fixed_dictionaries(
        {"url": st.sampled_from(["http://1", "http://2", "http://3"])},
        optional={"model": st.sampled_from(MODELS), "concurrency": st.integers(1, 2)},
    ),
    max_size=2,
).filter(lambda found: len({each["url"] for each in found.values()}) == len(found))
throttling = st.fixed_dictionaries(
    {"system": st.sampled_from(["fairserve", "wsc"])},
    optional={
        "parameters": st.dictionaries(st.sampled_from(["x", "y.z"]), st.integers(1, 2) | st.none())
    },
)
declarations = (
    st.fixed_dictionaries(
        {},
        optional={
            "throttling": throttling,
            "prices": prices,
            "workers": workers,
            "aliases": aliases,
            "tenants": st.dictionaries(names, tenants),
        },
    )
    .filter(
        lambda found: (
            not (
                {each.get("model") for each in found.get("workers", {}).values()}
                & set(found.get("aliases", {}))
            )
        )
    )
    .map(Declaration.model_validate)
)


ALIASES = [
    {"a": {"b": 1}, "c": {"d": 1}},  # c is to be deleted before a has it as a target,
    {"a": {"c": 1}, "b": {"d": 1}},  # and a is to be changed before b is created
]
WORKERS = [
    {"a": {"url": "http://1"}, "b": {"url": "http://2"}},
    {
        "b": {"url": "http://1"},
        "c": {"url": "http://2"},
    },  # a is to be deleted, then b to be changed
]
TENANT = {
    "apps": {"b": {"profile": {"stages": [{"input_tokens": 1, "output_tokens": 1}]}}},
    "users": {"b": {"weight": 2}},
    "webhooks": {"https://b.org/": {"events": ["alarm.opened"]}},
}
EMPTY = Declaration()
WITH_TENANT = Declaration.model_validate({"tenants": {"a": TENANT}})


class Server:
    """The objects of a server, with the values of their fields."""

    def __init__(self, declaration, manager):
        self.objects = {
            key: {**values, MANAGER: manager}
            for key, values in objects_of(declaration, NOW).items()
        }
        for key in self.objects:
            self.fill(key)

    def fill(self, key):
        if key.kind == "app" and self.objects[key][IDLE_TIMEOUT] is None:
            self.objects[key][IDLE_TIMEOUT] = 300.0  # as the real server fills it in

    def make(self, change):
        key, kind = change.key, change.key.kind
        if kind in ("app", "user", "webhook"):
            assert Key("tenant", key.names[:1]) in self.objects, f"{key} without its tenant"
        assert (key in self.objects) == (change.action != "create")
        if change.action == "delete":
            assert not (kind == "price" and not key.names[1]), "a price in force is not deleted"
            del self.objects[key]
            if kind == "tenant":
                inside = [k for k in self.objects if k.kind in ("app", "user", "webhook")]
                inside = [k for k in inside if k.names[0] == key.names[0]]
                assert len(inside) == change.within
                for each in inside:
                    del self.objects[each]
            return
        if kind == "alias":
            others = {k.names[0]: v["target"] for k, v in self.objects.items() if k.kind == "alias"}
            others.pop(key.names[0], None)
            assert not set(change.after["target"]) & set(others), "an alias to an alias"
            assert not any(key.names[0] in target for target in others.values())
        if kind == "worker":
            others = [v["url"] for k, v in self.objects.items() if k.kind == "worker" and k != key]
            assert change.after["url"] not in others, "two workers of one URL"
            served = {change.after["model"]}
        else:
            served = {v["model"] for k, v in self.objects.items() if k.kind == "worker"}
        named = {k.names[0] for k in self.objects if k.kind == "alias"}
        named |= {key.names[0]} if kind == "alias" else set()
        assert kind not in ("worker", "alias") or not served & named, "an alias of a model's name"
        changed = {name: value for name, _, value in change.differences()}
        self.objects[key] = self.objects.get(key, {}) | (
            dict(change.after) if change.action == "create" else changed
        )
        self.fill(key)

    def present(self, declaration):
        """Return the state as the planner reads it; ``declaration`` is its content."""
        managers = {
            key: each[MANAGER]
            for key, each in self.objects.items()
            if each[MANAGER] and key != THROTTLING
        }
        return ServerState(declaration, {}, managers)


UNMANAGED = ("price", "throttling")
THROTTLING = Key("throttling", ())


def shown(objects):
    """Return what is compared: not who made a version, and no idle timeout: the server may set it."""
    return {
        key: {
            name: value
            for name, value in values.items()
            if name != IDLE_TIMEOUT
            and not (key.kind in UNMANAGED and name == MANAGER)
            and not (key.kind == "throttling" and value is None)
        }
        for key, values in objects.items()
    }


@example(EMPTY, WITH_TENANT)
@example(WITH_TENANT, Declaration.model_validate({"tenants": {"a": {}}}))
@example(WITH_TENANT, EMPTY)
@example(*(Declaration.model_validate({"aliases": each}) for each in ALIASES))
@example(*(Declaration.model_validate({"workers": each}) for each in WORKERS))
@given(declarations, declarations)
def test_a_pruned_server_is_as_declared_and_planned_again_nothing_is_left(before, declared):
    server = Server(before, "apply")
    planned = plan(declared, server.present(before), NOW, prune=True)
    for change in planned.changes:
        server.make(change)
    wanted = Server(declared, "apply").objects
    if declared.throttling is None and before.throttling is not None:
        wanted[THROTTLING] = Server(before, "apply").objects[THROTTLING]
    assert shown(wanted) == shown(
        {k: v for k, v in server.objects.items() if k not in planned.left}
    )
    assert {key.kind for key in planned.left} <= {"price"}
    again = plan(declared, server.present(declared), NOW, prune=True)
    assert again.changes == ()


@given(declarations, declarations, st.sampled_from(["apply", "other", None]))
def test_nothing_is_deleted_without_prune_and_nothing_of_others_with_it(before, declared, manager):
    for prune in (False, manager != "apply"):
        server = Server(before, manager)
        there = set(server.objects)
        planned = plan(declared, server.present(before), NOW, prune=prune)
        assert planned.count("delete") == 0
        assert bool(planned.left) <= (manager == "apply")
        assert there <= set(server.objects)
        assert set(planned.left) == (
            there - {*Server(declared, "apply").objects, THROTTLING}
            if manager == "apply"
            else set()
        )
