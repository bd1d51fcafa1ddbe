"""The fleet merges its sources and reaches the desired state without interrupting calls."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fairserve.platform.fleet.fleet import (
    SOURCES,
    Desired,
    DesiredWorker,
    Drain,
    DrainNote,
    FleetPart,
    Join,
    Present,
    Remove,
    Undrain,
    after,
    changes,
    clashes,
    merge,
)
from fairserve.platform.fleet.worker_spec import WorkerSpec

ids = st.sampled_from("abcdef")
specs = st.builds(
    WorkerSpec,
    worker_id=ids,
    url=st.sampled_from([f"http://h{n}" for n in range(8)]),
    model=st.sampled_from(["", "m", "n"]),
    concurrency=st.sampled_from([8, 16]),
)
aliases = st.dictionaries(
    st.sampled_from(["x", "y", "m"]),
    st.dictionaries(st.sampled_from(["m", "n", "x"]), st.just(1.0), min_size=1),
)
parts = st.builds(
    FleetPart,
    workers=st.lists(specs, max_size=5, unique_by=lambda spec: spec.worker_id).map(tuple),
    aliases=aliases,
)
notes = st.builds(DrainNote, st.sampled_from([None, "sk-fs-a-1"]))
drains = st.dictionaries(ids, notes)
fleets = st.dictionaries(st.sampled_from(SOURCES), parts).map(merge)
desired_workers = st.builds(
    lambda found: Desired({w.spec.worker_id: w for w in found}),
    st.lists(
        st.builds(
            DesiredWorker,
            specs,
            st.sampled_from(["settings", "api", "file", "embedded"]),
            st.none() | notes,
        )
    ),
)


def wanted(desired):
    """Return the workers that shall serve; embedded ones without the URL of their process."""
    return {
        worker_id: (worker.source == "embedded") or worker.spec
        for worker_id, worker in desired.workers.items()
        if not worker.drained
    }


def what_it_is(there):
    return (there.source == "embedded") or there.spec


@given(st.dictionaries(st.sampled_from(SOURCES), parts), drains)
def test_a_worker_belongs_to_the_first_source_that_names_it(parts, drained):
    """It is drained if its id is, whichever source it has."""
    fleet = merge(parts, drained)
    for worker_id, worker in fleet.workers.items():
        before = SOURCES[: SOURCES.index(worker.source)]
        assert worker.spec in parts[worker.source].workers
        assert worker.drain == drained.get(worker_id)
        assert worker.drained == (worker_id in drained)
        for source in before:
            named = parts.get(source, FleetPart()).workers
            assert worker_id not in {spec.worker_id for spec in named}
    assert set(fleet.workers) == {s.worker_id for part in parts.values() for s in part.workers}
    assert set(fleet.aliases) == {name for part in parts.values() for name in part.aliases}


@given(parts, fleets)
def test_parts_without_clashes_are_merged_completely(part, others):
    """Clashes are reported: otherwise a part would be lost, or an alias point to an alias."""
    if clashes(part, others):
        return
    known = set(others.workers) | set(others.aliases)
    assert not known & {spec.worker_id for spec in part.workers}
    together = {**others.aliases, **merge({"file": part}).aliases}
    models = others.declared_models() | {spec.model for spec in part.workers}
    for name, alias in together.items():
        if name in part.aliases:
            assert not set(alias.targets) & set(together)
            assert name not in others.declared_models()
    urls = [spec.url for spec in part.workers] + [w.spec.url for w in others.workers.values()]
    own = {spec.url for spec in part.workers}
    assert all(urls.count(url) == 1 for url in own)
    assert not models & set(part.aliases) - {spec.model for spec in part.workers}


@given(aliases, aliases)
def test_aliases_without_clashes_point_to_models(given_here, given_there):
    part, others = FleetPart(aliases=given_here), merge({"api": FleetPart(aliases=given_there)})
    own = clashes(FleetPart(aliases=given_there), Desired())
    if own or clashes(part, others):
        return
    together = {**given_here, **given_there}
    assert len(together) == len(given_here) + len(given_there)
    assert not set(together) & {target for targets in together.values() for target in targets}


@given(st.lists(desired_workers, min_size=1, max_size=6), st.data())
def test_every_transition_is_safe_and_reaches_the_desired_state(stages, data):
    """The desired state changes at any time, and calls end at any time."""
    present: dict[str, Present] = {}
    for desired in stages:
        steps = changes(desired, present)
        check(desired, present, steps)
        present = after(present, steps)
        present = supervise(present, desired, data.draw(st.sets(ids)), data.draw(st.sets(ids)))
        ended = data.draw(st.sets(ids))
        present = settle(present, ended)
    last = stages[-1]
    for _ in range(3):
        steps = changes(last, present)
        check(last, present, steps)
        present = settle(after(present, steps), set("abcdef"))
    embedded = {name for name, there in present.items() if there.source == "embedded"}
    for worker_id in embedded:
        serves = wanted(last).get(worker_id) is True
        assert present[worker_id].draining == (not serves)
    others = {name: there for name, there in present.items() if name not in embedded}
    assert {name: what_it_is(there) for name, there in others.items()} == {
        name: what
        for name, what in wanted(last).items()
        if name not in embedded and what is not True
    }
    assert not any(there.draining for there in others.values())
    assert changes(last, present) == []


def supervise(present, desired, started, ended):
    """Embedded processes end and start, drained or not."""
    kept = {
        name: there
        for name, there in present.items()
        if there.source != "embedded" or name not in ended
    }
    new = {
        name: Present(replace(worker.spec, url=f"http://127.0.0.1:{len(kept)}"), "embedded")
        for name, worker in desired.workers.items()
        if worker.source == "embedded" and name in started and name not in kept
    }
    return {**kept, **new}


def settle(present, ended):
    """End the calls of some of the draining workers."""
    return {
        worker_id: replace(there, idle=there.idle or worker_id in ended)
        if there.draining
        else there
        for worker_id, there in present.items()
    }


def check(desired, present, steps):
    gone = set()
    for step in steps:
        match step:
            case Remove(worker_id):
                assert present[worker_id].source != "embedded", "that is its supervisor's affair"
                assert present[worker_id].draining
                assert present[worker_id].idle, "a worker is removed under its calls"
                gone.add(worker_id)
            case Drain(worker_id):
                assert not present[worker_id].draining
                assert wanted(desired).get(worker_id) != what_it_is(present[worker_id])
            case Undrain(worker_id):
                assert present[worker_id].draining
                assert wanted(desired).get(worker_id) == what_it_is(present[worker_id])
            case Join(worker):
                worker_id = worker.spec.worker_id
                assert worker.source != "embedded", "that is its supervisor's affair"
                assert worker_id not in present or worker_id in gone, "joined twice"
                assert wanted(desired)[worker_id] == worker.spec


@given(desired_workers)
def test_unchanged_workers_are_left_alone(desired):
    present = after({}, changes(desired, {}))
    assert changes(desired, present) == []


@given(st.lists(specs, unique_by=lambda spec: spec.worker_id), st.sampled_from(SOURCES), drains)
def test_a_drain_applies_to_every_source_and_can_be_undone(workers, source, drained):
    """It ends calls on those workers only; undrained before the end, they serve immediately."""
    part = {source: FleetPart(tuple(workers))}
    serving = {spec.worker_id: Present(spec, source) for spec in workers}
    steps = changes(merge(part, drained), serving)
    assert steps == [Drain(spec.worker_id) for spec in workers if spec.worker_id in drained]
    draining = after(serving, steps)
    assert changes(merge(part, drained), draining) == []
    back = changes(merge(part), draining)
    assert back == [Undrain(spec.worker_id) for spec in workers if spec.worker_id in drained]
    assert after(draining, back) == serving
