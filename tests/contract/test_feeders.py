"""In every feeder, reports of generated tokens charge the same as a report of the whole usage."""

import json

import pytest
from virtual_cluster import make_call, prompt

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.events import AppChanged
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.registry import FEEDERS
from fairserve.throttling.base import Limits

TOKENS = prompt((1, 100))
CONFIGURATIONS = [
    ("fcfs", {}),
    ("vtc", {}),
    ("wsc", {}),
    ("wsc", {"charge": "finish"}),
    ("wsc", {"charge_cached": True}),
    ("central_dlpm", {}),
]


def made(name, options):
    """Return a feeder that dispatched and charged ``a`` and has another call of its client."""
    directory, locality = Directory(), Locality(seed=1)
    locality.add_worker("w0", 100_000)
    directory.take(AppChanged("app", AppProfile((StageProfile(100, 0, 10),)), Limits()))
    feeder = FEEDERS[name](directory, locality, **options)
    for call_id in ("a", "b"):
        call = make_call(call_id, user="alice", app="app", tokens=TOKENS, output=10)
        call.stage, call.expected_output_tokens = 1, 10
        locality.register(call)
        feeder.add(call)
    feeder.dispatch("a", 16)
    feeder.charge("a", TokenUsage(100, 0, 16, 0))
    return feeder, {"b": call}


def amounts(feeder):
    return json.loads(json.dumps(feeder.snapshot()))


def nearly_equal(one, other):
    """Return whether both are equal but for rounding."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(nearly_equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(nearly_equal, one, other))
    return one == (pytest.approx(other) if isinstance(one, float) else other)


@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
def test_an_expected_output_is_settled_at_the_end(name, options):
    (one, _), (other, _) = made(name, options), made(name, options)
    path = ("t", "alice")
    before = one.counter(path)
    one.expect("a", 500)
    if name == "wsc" and options.get("charge") != "finish":
        assert one.counter(path) - before == pytest.approx(490 / 110), "reserved beside the 10"
    one.expect("a", 5)
    for feeder in (one, other):
        feeder.finish("a", TokenUsage(100, 0, 16, 20))
    assert nearly_equal(amounts(one), amounts(other))


@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
def test_generated_tokens_are_charged_like_the_final_usage(name, options):
    (stepwise, _), (whole, _) = made(name, options), made(name, options)
    assert nearly_equal(amounts(stepwise), amounts(whole))
    for tokens in (3, 7, 7, 5, 25):  # more than expected; late reports are ignored
        stepwise.decoded([("a", tokens)])
        whole.charge("a", TokenUsage(100, 0, 16, tokens))
        assert nearly_equal(amounts(stepwise), amounts(whole))
    if options.get("charge") != "finish" and name != "fcfs":
        assert amounts(stepwise) != amounts(made(name, options)[0])
    for feeder in (stepwise, whole):
        feeder.finish("a", TokenUsage(100, 0, 16, 30))
    assert nearly_equal(amounts(stepwise), amounts(whole))


@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
def test_generated_tokens_are_charged_after_a_restore(name, options):
    (feeder, _), (restored, calls) = made(name, options), made(name, options)
    state = amounts(feeder)
    restored.restore(state, calls)
    for each in (feeder, restored):
        each.decoded([("a", 12)])
    assert amounts(feeder) == amounts(restored)


PATHS = [(), ("t",), ("t", "alice"), ("t", "nobody"), ("nobody", "alice"), ("nobody",)]


def read_counters(feeder):
    """Read everything about counters."""
    return [(feeder.counter(path), feeder.least_counter(path)) for path in PATHS if path]


def test_every_feeder_is_covered():
    assert {name for name, _ in CONFIGURATIONS} == set(FEEDERS)


@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
def test_reading_counters_changes_nothing(name, options):
    """Calls with and without look-ups of counters lead to the same state and selections."""
    (asked, _), (other, _) = made(name, options), made(name, options)
    read_counters(asked)
    assert asked.snapshot() == other.snapshot()
    for number in range(30):
        for feeder in (asked, other):
            call = make_call(
                f"c{number}", user=f"u{number % 4}", app="app", tokens=TOKENS, output=10
            )
            call.stage, call.expected_output_tokens = 1, 10
            feeder._locality.register(call) if name != "fcfs" else None
            feeder.add(call)
        before = asked.snapshot()
        read_counters(asked)
        assert asked.snapshot() == before == other.snapshot()
        if number % 3 == 2:
            chosen = asked.peek(["w0"])
            assert chosen.call_id == other.peek(["w0"]).call_id
            for feeder in (asked, other):
                feeder.dispatch(chosen.call_id, 0)
                read_counters(asked)
                feeder.charge(chosen.call_id, TokenUsage(100, 0, 0, number))
                feeder.finish(chosen.call_id, TokenUsage(100, 0, 0, 2 * number))
            assert asked.snapshot() == other.snapshot()


@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
def test_counters_are_higher_for_clients_with_more_service(name, options):
    feeder, _ = made(name, options)
    feeder.finish("a", TokenUsage(100, 0, 16, 10))
    if name == "fcfs":
        assert read_counters(feeder) == [(None, None)] * (len(PATHS) - 1)
        return
    counter = feeder.counter(("t", "alice"))
    assert counter == pytest.approx(feeder.counter(("t",)))
    assert counter != 0
    assert feeder.least_counter() == feeder.least_counter(("t",)) == pytest.approx(counter)
    assert feeder.least_counter(("t", "alice")) is None, "there is nothing below a client"
    assert feeder.least_counter(("nobody",)) is None
    feeder.remove("b")
    assert feeder.least_counter() is feeder.least_counter(("t",)) is None, "nobody waits"


@pytest.mark.parametrize("name", [name for name in FEEDERS if name != "fcfs"])
def test_generated_tokens_of_an_undispatched_call_are_an_error(name):
    feeder, _ = made(name, {})
    with pytest.raises(KeyError):
        feeder.decoded([("b", 1)])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, options) for name, options in CONFIGURATIONS if name != "fcfs"),
        ("central_dlpm", {"quantum": 1000.0}),  # in credit
    ],
)
def test_a_tenant_keeps_its_counter_when_its_only_call_moves(name, options):
    """Idle clients may be evicted and restart, so the tenant must not be idle in between."""
    feeder, _ = made(name, options)
    feeder.finish("a", TokenUsage(100, 0, 16, 10))
    before = feeder.counter(("t",))
    assert before != 0
    feeder.move({"b": ("t", "app", "alice")})
    assert feeder.counter(("t",)) == before
    assert [call.client for call in feeder.waiting()] == [("t", "app", "alice")]
