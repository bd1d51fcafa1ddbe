"""Test the circuit of a worker, one timeline a test; ``tests/property/test_circuit.py`` mixes them."""

import pytest

from fairserve.engine.wire.circuit import Circuit, CircuitOptions

OPTIONS = CircuitOptions(calls=2, probes=3, first_pause_s=1.0, last_pause_s=4.0, calm_s=10.0)


def fail(circuit, now_s, generation=None):
    """Fail calls until the circuit is open."""
    while circuit.state == "closed":
        circuit.call_failed(circuit.generation if generation is None else generation, "503", now_s)


def recover(circuit):
    """End the pause with a successful probe; return the time."""
    now_s = circuit.until_s
    assert circuit.should_probe(now_s)
    circuit.probe_passed(now_s)
    return now_s


def test_an_open_circuit_has_a_reason():
    circuit = Circuit(OPTIONS)
    assert not circuit.call_failed(0, "it answered 500", 0.0)
    assert circuit.call_failed(0, "it answered 503", 0.0)
    assert circuit.reason == "2 calls in a row did not begin: it answered 503"
    assert not circuit.call_failed(0, "late", 0.1), "it is open already"
    assert circuit.opened == 1


def test_one_unreachable_call_opens_the_circuit():
    circuit = Circuit(OPTIONS)
    assert circuit.call_failed(0, "no connection: refused", 0.0, unreachable=True)
    assert (circuit.state, circuit.reason) == ("open", "no connection: refused")
    circuit = Circuit(OPTIONS)
    assert not circuit.call_failed(1, "no connection: refused", 0.0, unreachable=True)
    assert circuit.state == "closed", "that was in another generation"


def failures(circuit, *tenants):
    """Return for each failed call of the given tenants, in order, whether it opens the circuit."""
    return [
        circuit.call_failed(circuit.generation, "500", 0.0, tenant=tenant) for tenant in tenants
    ]


def test_failures_that_calls_may_have_caused_need_two_tenants():
    circuit = Circuit(CircuitOptions(calls=5))
    assert not any(failures(circuit, *["a"] * 50))
    assert failures(circuit, "b", "b") == [False, True], "one tenant counts at most three"


def test_repeated_failures_of_one_tenant_count_once():
    circuit = Circuit(CircuitOptions(calls=5))
    assert not any(failures(circuit, "b", *["a"] * 50))


def test_a_started_call_resets_the_failures_of_all_tenants():
    circuit = Circuit(CircuitOptions(calls=4))
    failures(circuit, "a", "a", "a", "b")
    circuit.call_began(circuit.generation)
    assert failures(circuit, "b", "b", "a", "a") == [False, False, False, True]


def test_failures_not_caused_by_calls_add_to_those_of_one_tenant():
    circuit = Circuit(CircuitOptions(calls=5))
    assert failures(circuit, "a", "a", "a", "a", "", "") == [False] * 5 + [True]


def test_pauses_grow_while_probes_succeed_and_calls_fail():
    circuit, pauses, now_s = Circuit(OPTIONS), [], 0.0
    for _ in range(4):
        fail(circuit, now_s)
        pauses.append(circuit.until_s - now_s)
        now_s = recover(circuit)
    assert pauses == [1.0, 2.0, 4.0, 4.0]


def test_a_started_call_resets_the_pause():
    circuit = Circuit(OPTIONS)
    fail(circuit, 0.0)
    now_s = recover(circuit)
    circuit.call_began(circuit.generation)
    fail(circuit, now_s)
    assert circuit.until_s == now_s + 1.0


def test_a_time_without_failures_resets_the_pause():
    circuit = Circuit(OPTIONS)
    fail(circuit, 0.0)
    now_s = recover(circuit) + OPTIONS.calm_s
    fail(circuit, now_s)
    assert circuit.until_s == now_s + 1.0


def test_calls_of_an_earlier_generation_do_not_count():
    circuit = Circuit(OPTIONS)
    fail(circuit, 0.0)
    recover(circuit)
    for _ in range(10):
        assert not circuit.call_failed(circuit.generation - 1, "sent before the pause", 2.0)
    circuit.call_failed(circuit.generation, "503", 2.0)
    circuit.call_began(circuit.generation - 1)
    assert circuit.call_failed(circuit.generation, "503", 2.0), "an old call does not end the row"


def test_successful_probes_do_not_hide_failing_calls():
    circuit = Circuit(OPTIONS)
    circuit.call_failed(0, "500", 0.0)
    circuit.probe_passed(0.5)
    assert circuit.call_failed(0, "500", 1.0)


@pytest.mark.parametrize(
    "options",
    [
        {"calls": 0},
        {"probes": 0},
        {"first_pause_s": 0.0},
        {"first_pause_s": 9.0, "last_pause_s": 5},
    ],
)
def test_invalid_options_are_rejected(options):
    with pytest.raises(ValueError, match="allowed"):
        CircuitOptions(**options)
