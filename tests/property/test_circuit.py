"""Test a worker's circuit under any mixture of calls, probes and time."""

from histories import histories
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.wire.circuit import Circuit, CircuitOptions

OPTIONS = CircuitOptions(calls=3, probes=2, first_pause_s=1.0, last_pause_s=8.0, calm_s=50.0)

moves = histories(
    st.one_of(
        st.tuples(st.just("began"), st.integers(0, 1)),
        st.tuples(st.just("failed"), st.integers(0, 1)),
        st.tuples(st.just("probe"), st.booleans()),
        st.tuples(st.just("time"), st.sampled_from([0.1, 0.5, 1.0, 3.0, 60.0])),
    ),
    60,
)


@given(moves)
def test_a_circuit_opens_with_a_reason_and_closes_after_a_probe(moves):
    circuit, now_s = Circuit(OPTIONS), 0.0
    calls = probes = 0
    """Consecutive failures in this generation."""
    pause_s, closed_s = 0.0, float("-inf")
    for move, value in moves:
        before, generation = circuit.state, circuit.generation
        assert before != "half open"
        opened = False
        if move == "time":
            now_s += value
        elif move == "began":
            circuit.call_began(generation - value)
            if value == 0 and before == "closed":
                calls, pause_s = 0, 0.0
        elif move == "failed":
            opened = circuit.call_failed(generation - value, "no", now_s)
            calls += value == 0 and before == "closed"
            assert opened == (before == "closed" and value == 0 and calls == OPTIONS.calls)
        else:
            may = circuit.should_probe(now_s)
            assert may == (before == "closed" or now_s >= circuit.until_s)
            if not may:
                assert circuit.state == "open"
                continue
            if before == "open":
                assert not circuit.should_probe(now_s), "one probe after a pause"
            if value:
                circuit.probe_passed(now_s)
                probes = 0
                assert circuit.state == "closed"
                if before == "open":
                    assert circuit.generation == generation + 1
                    calls, closed_s = 0, now_s
            else:
                opened = circuit.probe_failed("no", now_s)
                probes += before == "closed"
                assert opened == (before == "open" or probes == OPTIONS.probes)
        if opened:
            if before == "closed" and now_s - closed_s >= OPTIONS.calm_s:
                pause_s = 0.0
            pause_s = min(2 * pause_s, OPTIONS.last_pause_s) or OPTIONS.first_pause_s
            assert circuit.state == "open"
            assert circuit.until_s == now_s + pause_s
            calls = probes = 0
        elif move != "probe":
            assert circuit.state == before


@given(st.integers(1, 30))
def test_pauses_double_up_to_a_bound(failures):
    circuit, now_s, pauses = Circuit(OPTIONS), 0.0, []
    while circuit.state == "closed":
        circuit.probe_failed("no", now_s)
    for _ in range(failures):
        pauses.append(circuit.until_s - now_s)
        assert not circuit.should_probe(circuit.until_s - 0.01)
        now_s = circuit.until_s
        assert circuit.should_probe(now_s)
        circuit.probe_failed("no", now_s)
    assert pauses == [min(2.0**n, OPTIONS.last_pause_s) for n in range(failures)]
