"""The output of a call that reports none is estimated from the client's own calls first."""

from fairserve.interactions.call import Call
from fairserve.platform.control import forecast as module
from fairserve.platform.control.forecast import ALL_TOKENS, OWN_TOKENS, OutputForecast


def call(user="u", pool="m", samples=1, expected=40, most=100, tenant="t"):
    made = Call("c", tenant, "a", user, "r", pool, 10, 0, most, samples, pool=pool)
    made.expected_output_tokens = expected
    return made


def add(forecast, user, tokens, per_s, calls=1, **more):
    """Add calls of a user with this many tokens each, at this speed."""
    for _ in range(calls):
        forecast.completed(call(user, **more), tokens, tokens / per_s)


def test_without_enough_completed_calls_the_expected_output_counts():
    forecast = OutputForecast()
    assert forecast.output_tokens(call(), 0.5) == 40
    assert forecast.output_tokens(call(expected=400), 0.5) == 100, "the maximum bounds it"
    add(forecast, "u", OWN_TOKENS - 1, 10)
    assert forecast.output_tokens(call(), 0.5) == 40
    assert forecast.output_tokens(call("other"), 0.5) == 40


def test_the_estimate_grows_with_time_up_to_the_maximum():
    forecast = OutputForecast()
    forecast.completed(call(samples=2), 200, 10.0)  # 10 tokens a second for each sample
    assert [forecast.output_tokens(call(), each) for each in (0.0, 1.0, 3.0, 60.0)] == [
        1,
        10,
        30,
        100,
    ]
    assert forecast.output_tokens(call(samples=3), 1.0) == 30
    assert forecast.output_tokens(call(samples=3), 0.01) == 3, "each sample has begun"
    assert forecast.output_tokens(call(most=0), 0.01) == 0, "it has no output"
    assert forecast.output_tokens(call(pool="other"), 1.0) == 40, "each model has its own speed"


def test_a_client_has_its_own_speed_and_without_one_that_of_all():
    forecast = OutputForecast()
    add(forecast, "slow", 100, 5, calls=20)
    add(forecast, "fast", 100, 50, calls=20)
    assert forecast.output_tokens(call("slow"), 1.0) == 5
    assert forecast.output_tokens(call("fast"), 1.0) == 50
    assert 20 <= forecast.output_tokens(call("new"), 1.0) <= 35


def test_short_calls_of_anybody_cut_no_forecast():
    forecast = OutputForecast()
    add(forecast, "other", 1, 0.5, calls=40)
    assert forecast.output_tokens(call("u"), 1.0) == 40, "too few tokens for a mean"
    add(forecast, "u", 100, 50, calls=10)
    add(forecast, "busy", 100, 50, calls=40)
    before = [forecast.output_tokens(call(user), 1.0) for user in ("u", "new")]
    add(forecast, "other", 1, 0.5, calls=40)
    after = [forecast.output_tokens(call(user), 1.0) for user in ("u", "new")]
    assert after[0] == before[0], "its own calls come first"
    assert after[1] >= 0.95 * before[1]
    add(forecast, "u", 1, 0.5, calls=40)
    assert forecast.output_tokens(call("u"), 1.0) >= 0.9 * before[0], "not even the client's own"


def test_the_speed_follows_the_latest_calls():
    forecast = OutputForecast()
    add(forecast, "u", 20, 10, calls=100)
    add(forecast, "u", 20, 50, calls=100)
    assert 49 <= forecast.output_tokens(call(), 1.0) <= 50


def test_one_long_call_is_known_at_once():
    forecast = OutputForecast()
    add(forecast, "u", 10 * ALL_TOKENS, 20)
    assert forecast.output_tokens(call(), 1.0) == forecast.output_tokens(call("new"), 1.0) == 20


def test_a_call_without_output_or_time_has_no_speed():
    forecast = OutputForecast()
    forecast.completed(call(), 0, 1.0)
    forecast.completed(call(), 1000, 0.0)
    assert forecast.output_tokens(call(), 1.0) == 40


def test_the_clients_with_the_latest_calls_are_kept_and_no_tenants_flood_evicts_another(
    monkeypatch,
):
    monkeypatch.setattr(module, "MAX_CLIENTS", 3)
    forecast = OutputForecast()
    add(forecast, "honest", 100, 90, tenant="honest")
    add(forecast, "other", 100, 5, calls=100)
    for user in ("a", "b", "a", "c"):
        add(forecast, user, 64, 80)
    assert forecast.output_tokens(call("a"), 1.0) == 80
    assert forecast.output_tokens(call("b"), 1.0) < 20, "that of all calls"
    assert forecast.output_tokens(call("honest", tenant="honest"), 1.0) == 90
