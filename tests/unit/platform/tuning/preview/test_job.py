"""The two replays of a preview agree with known traffic, also in the child process."""

import json
import pickle
import subprocess
import sys
from dataclasses import replace

import orjson
import pytest
from preview_world import EPOCH, TRUTH, History, traffic

from fairserve.platform.tuning.preview.job import MOST_FACTOR, MOST_USERS, preview
from fairserve.platform.tuning.preview.schemas import PreviewOut
from fairserve.platform.tuning.preview.words import trust
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

SMALL = replace(TRUTH, kv_capacity_tokens=3000)
FAIRSERVE = SYSTEMS["fairserve"]


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """Return history in which one user floods under a limit for all users."""
    folder = tmp_path_factory.mktemp("recording")
    return History(folder, traffic(250), system=SYSTEMS["rpm-20"])


@pytest.fixture(scope="module")
def overloaded(tmp_path_factory):
    """Return history in which a flood overloads a small worker and apps have their own limits."""
    folder = tmp_path_factory.mktemp("recording")
    trace = traffic(400, seconds=200)
    return History(folder, trace, costs=SMALL, limits=Limits(user_rpm=20))


def rejected_calls(history, proposed):
    return preview(history.job(proposed, seconds=1000))["proposed"]["refused_calls"]


def test_a_replay_of_present_settings_reproduces_history(limited):
    found = preview(limited.job(SYSTEMS["rpm-20"]))
    assert found["current"] == found["proposed"]
    assert found["users"] == []
    fidelity = found["fidelity"]
    assert fidelity["trust"] == "good"
    assert fidelity["refused_calls"]["measured"] == len(limited.refused)
    assert fidelity["refused_calls"]["simulated"] == pytest.approx(len(limited.refused), rel=0.1)
    assert "rejected calls would have been the same" in found["sentences"][0]


def test_a_lower_limit_rejects_more_and_a_higher_one_fewer(limited):
    counts = [rejected_calls(limited, SYSTEMS[f"rpm-{limit}"]) for limit in (10, 30, 1000)]
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) == 3
    assert counts[-1] == 0


@pytest.mark.deep
def test_a_previewed_limit_agrees_with_the_real_one(limited, tmp_path):
    """Compare the replay with the same traffic served under the proposed limit."""
    truth = History(tmp_path, limited.trace, system=SYSTEMS["rpm-40"])
    assert rejected_calls(limited, SYSTEMS["rpm-40"]) == pytest.approx(len(truth.refused), rel=0.25)


def test_overload_limits_follow_the_watermarks(overloaded):
    assert overloaded.refused
    never = FAIRSERVE.with_options({"high_watermark": 100.0})
    found = preview(overloaded.job(never, seconds=1000))
    assert found["current"]["refused_by_reason"].keys() == {"overloaded_user_limit"}
    assert found["proposed"]["refused_calls"] == 0
    assert found["proposed"]["queue_delay_s"]["p99"] > found["current"]["queue_delay_s"]["p99"]
    early = FAIRSERVE.with_options({"high_watermark": 0.5, "low_watermark": 0.4})
    assert rejected_calls(overloaded, early) > found["current"]["refused_calls"]
    assert found["fidelity"]["trust"] != "poor"
    first, second = found["sentences"][:2]
    was = found["current"]["refused_calls"]
    assert first == f"0 calls would have been rejected instead of {was}."
    assert second.startswith("The p99 queue delay would have been ")


@pytest.mark.deep
def test_retrying_clients_retry_in_the_replay(tmp_path):
    trace = traffic(400, seconds=200)
    history = History(tmp_path, trace, costs=SMALL, limits=Limits(user_rpm=20), retries=2)
    found = preview(history.job(FAIRSERVE, seconds=1000))
    assert found["window"]["retries"] == 2
    assert found["window"]["came_earlier_runs"] > 0
    assert found["fidelity"]["trust"] != "poor"


@pytest.mark.deep
def test_calls_keep_their_duration_although_the_scale_of_single_calls_is_too_large(overloaded):
    found = preview(overloaded.job(FAIRSERVE, seconds=1000))
    costs = found["workers"]["costs"]
    assert costs["source"] == "scaled"
    assert 1 / MOST_FACTOR <= costs["factor"] < 1
    measured, simulated = found["fidelity"]["queue_delay_p50_s"].values()
    assert simulated == pytest.approx(measured, rel=1.0)


def test_the_number_of_named_users_is_bounded(limited):
    found = preview(limited.job(SYSTEMS["rpm-1000"]))
    users = found["users"]
    assert len(users) == found["users_changed"] <= MOST_USERS
    assert (users[0]["tenant"], users[0]["user"]) == ("t", "u0")
    assert users[0]["refused"]["proposed"] == 0 < users[0]["refused"]["current"]
    assert users[0]["served"]["proposed"] > users[0]["served"]["current"]
    changes = [abs(u["served"]["proposed"] - u["served"]["current"]) for u in users]
    assert changes[0] == max(changes)


def test_figures_exclude_the_warm_up_before_the_window(limited):
    job = limited.job(SYSTEMS["rpm-20"], lead_at=EPOCH + 60, from_at=EPOCH + 120)
    found = preview(job)
    runs = [run for run in limited.trace.interactions if run.arrival_s >= 120]
    assert found["window"]["runs"] == pytest.approx(len(runs), abs=2)
    late = [row for row in limited.refused if row.at >= EPOCH + 120]
    assert found["fidelity"]["refused_calls"]["measured"] == len(late)


def test_a_shortened_window_is_reported(limited):
    found = preview(limited.job(SYSTEMS["fcfs"], max_calls=100))
    assert found["window"]["cut"]
    assert found["window"]["calls"] <= 100
    assert found["window"]["from"] > "2023-11-14T22:13:20"


def test_a_preview_needs_a_recording(limited, tmp_path):
    found = preview(limited.job(SYSTEMS["fcfs"], recording=tmp_path))
    assert found.keys() == {"nothing"}
    later = limited.job(
        SYSTEMS["fcfs"], lead_at=EPOCH + 900, from_at=EPOCH + 960, until_at=EPOCH + 1000
    )
    assert "no complete run" in preview(later)["nothing"]


def test_the_child_process_returns_the_same_bytes(limited):
    job = pickle.dumps(limited.job(SYSTEMS["rpm-30"], notes=["a note"]))
    answer = subprocess.run(
        [sys.executable, "-m", "fairserve.platform.tuning.preview.job"],
        input=job,
        capture_output=True,
        check=True,
    ).stdout
    assert answer == orjson.dumps(preview(pickle.loads(job)), option=orjson.OPT_SORT_KEYS)
    found = PreviewOut.model_validate_json(answer)
    assert found.left_out[-1] == "a note"
    assert found.workers.costs.source == "scaled"
    answered = json.loads(answer)
    assert found.model_dump(mode="json", by_alias=True).keys() == answered.keys()
    assert found.model_dump(by_alias=True)["window"].keys() == answered["window"].keys()


@pytest.mark.parametrize(
    ("rejections", "delay", "expected"),
    [
        ((100, 110), (1.0, 1.2), "good"),
        ((2, 6), (0.01, 0.2), "good"),
        ((100, 60), (1.0, 1.2), "fair"),
        ((100, 100), (4.0, 8.0), "fair"),
        ((100, 20), (1.0, 1.0), "poor"),
        ((0, 0), (30.0, 4.0), "poor"),
        ((0, 0), (None, None), "good"),
    ],
)
def test_trust_is_the_lowest_of_its_parts(rejections, delay, expected):
    pairs = {
        "refused_calls": rejections,
        "queue_delay_p50_s": (0.0, 0.0),
        "queue_delay_p99_s": delay,
    }
    answered = {name: {"measured": a, "simulated": b} for name, (a, b) in pairs.items()}
    assert trust(answered, 500) == expected
