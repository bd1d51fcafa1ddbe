"""The output of a call that reports none is estimated from the speed of its model."""

from fairserve.interactions.call import Call
from fairserve.platform.control.forecast import OutputForecast


def call(pool="m", samples=1, expected=40, most=100):
    made = Call("c", "t", "a", "u", "r", pool, 10, 0, most, samples, pool=pool)
    made.expected_output_tokens = expected
    return made


def test_without_a_completed_call_the_expected_output_counts():
    assert OutputForecast().output_tokens(call(), 0.5) == 40
    assert OutputForecast().output_tokens(call(expected=400), 0.5) == 100, "the maximum bounds it"


def test_the_estimate_grows_with_time_up_to_the_maximum():
    forecast = OutputForecast()
    forecast.completed(call(samples=2), 40, 2.0)  # 10 tokens a second for each sample
    assert [forecast.output_tokens(call(), each) for each in (0.0, 1.0, 3.0, 60.0)] == [
        1,
        10,
        30,
        100,
    ]
    assert forecast.output_tokens(call(samples=3), 1.0) == 30
    assert forecast.output_tokens(call(samples=3), 0.01) == 3, "each sample has begun"
    assert forecast.output_tokens(call(most=0), 0.01) == 0, "it has no output"
    assert forecast.output_tokens(call("other"), 1.0) == 40, "each model has its own speed"


def test_the_speed_follows_the_latest_calls():
    forecast = OutputForecast()
    forecast.completed(call(), 10, 1.0)
    for _ in range(60):
        forecast.completed(call(), 50, 1.0)
    assert 49 <= forecast.output_tokens(call(), 1.0) <= 50


def test_a_call_without_output_or_time_has_no_speed():
    forecast = OutputForecast()
    forecast.completed(call(), 0, 1.0)
    forecast.completed(call(), 10, 0.0)
    assert forecast.output_tokens(call(), 1.0) == 40
