"""Test the alarms of the overview page."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from fairserve.platform.console.alarms import Health, alarms
from fairserve.platform.monitoring.client_views import ClientView
from fairserve.platform.monitoring.live_snapshot import ActivitySeries, LiveSnapshot

BUCKETS = 24


def live(**changes):
    zeros = [0.0] * BUCKETS
    activity = {
        name: zeros
        for name in ActivitySeries.__dataclass_fields__
        if name not in ("refused", "ended")
    }
    activity |= {"refused": {}, "ended": {}, "queue_p99_s": [None] * BUCKETS}
    overloaded = changes.pop("overloaded", [False] * BUCKETS)
    return LiveSnapshot(
        tenant=None,
        bucket_s=5.0,
        at=[5.0 * n for n in range(BUCKETS)],
        overloaded=overloaded,
        minute_jain_index=None,
        activity=ActivitySeries(**{**activity, **changes}),
        clients=[],
        other_clients=zeros,
        cluster=None,
    )


CLIENT = ClientView(
    tenant="tn",
    app="app",
    user="eve",
    service_1m=1.0,
    service_5m=1.0,
    service_30m=1.0,
    service_share=0.8,
    entitled_share=0.25,
    weight=1.0,
    queued_calls=0,
    running_calls=0,
    refused_calls=0,
    blocked=False,
    user_rpm=None,
    app_rpm=None,
    counter=None,
)


def member(state, reason):
    return SimpleNamespace(worker_id="w0", state=state, view=lambda now_s: {"reason": reason})


def job(health, error=""):
    return SimpleNamespace(name="rollup", health=health, error=error)


def texts(**health):
    return [(alarm.tone, alarm.text) for alarm in alarms(Health(**{"live": live(), **health}))]


def test_an_idle_server_has_no_alarms():
    assert texts(members=[member("ready", ""), member("joining", "")], jobs=[job("fine")]) == []


def test_only_a_lasting_overload_raises_an_alarm():
    short = [False] * 13 + [True] * 11
    assert texts(live=live(overloaded=short)) == []
    long = [True, False, *[True] * 22]
    ((tone, text),) = texts(live=live(overloaded=long))
    assert tone == "warn"
    assert text == "Overloaded for 110 s: new runs over their limits are rejected."
    ((_, text),) = texts(live=live(overloaded=[True] * BUCKETS))
    assert text.startswith("Overloaded for 2 min")
    over = [*[True] * 23, None]
    assert texts(live=live(overloaded=over)) == [], "nobody knows whether it still is"


@pytest.mark.parametrize(
    ("accepted", "refused", "shown"),
    [(15, 4, False), (16, 4, True), (81, 19, False), (80, 20, True), (0, 100, True)],
)
def test_rejections_raise_an_alarm_by_their_share(accepted, refused, shown):
    def last(count):
        return [1000.0] * (BUCKETS - 12) + [0.0] * 11 + [float(count)]

    found = texts(
        live=live(accepted=last(accepted), refused={"a": last(refused), "b": [None] * 24})
    )
    assert bool(found) == shown
    if shown:
        assert f"{refused} of {accepted + refused} calls" in found[0][1]


def test_long_waits_raise_an_alarm():
    waits = [100.0] * (BUCKETS - 12) + [None] * 12
    assert texts(live=live(queue_p99_s=waits)) == [], "it is over"
    ((_, text),) = texts(live=live(queue_p99_s=[*waits[:-1], 31.0]))
    assert "31 s" in text


@pytest.mark.parametrize(
    ("share", "entitled", "shown"), [(0.8, 0.25, True), (0.3, 0.25, False), (None, 0.2, False)]
)
def test_a_client_far_above_its_share_raises_an_alarm(share, entitled, shown):
    client = replace(CLIENT, service_share=share, entitled_share=entitled)
    assert bool(texts(clients=[client])) == shown


def test_rejected_ledger_rows_raise_an_alarm():
    ((tone, text),) = texts(rejected_rows=2)
    assert (tone, "2 ledger rows" in text) == ("warn", True)


def test_alarms_are_sorted_by_severity():
    found = texts(
        clients=[CLIENT],
        members=[member("open circuit", "HTTP 500"), member("joining", "no such model")],
        jobs=[job("dead", "boom"), job("failing", "again"), job("late", "old")],
        models_without_worker=["llama"],
        fleet_problem="it is no JSON",
        ledger_waits_s=12.4,
        draining=True,
    )
    tones = [tone for tone, _ in found]
    assert tones == ["bad"] * 5 + ["warn"] * 5
    message = "\n".join(text for _, text in found)
    for part in (
        "draining",
        "No worker serves llama",
        "Worker w0 gets no calls: HTTP 500.",
        "Worker w0 cannot join: no such model.",
        "it is no JSON",
        "for 12 s",
        "rollup is dead: boom",
        "rollup is failing: again",
        "eve gets 80 %",
    ):
        assert part in message
    assert "old" not in message, "the last error of a job that only is late"


def test_the_number_of_named_flooders_is_bounded():
    clients = [replace(CLIENT, user=f"eve-{n}") for n in range(10)]
    assert len(texts(clients=clients)) == 3
