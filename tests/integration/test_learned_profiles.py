"""Profiles are learned from the rows of the ledger: versions, modes, events for control."""

from datetime import UTC, datetime, timedelta

import pytest
from call_records import call_record
from databases import ON_POSTGRESQL
from sqlalchemy import select

from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.control.ledger_tables import upsert_calls, upsert_interactions
from fairserve.platform.control.messages import InteractionRecord
from fairserve.platform.db.identity import App
from fairserve.platform.db.profiles import ProfileVersion
from fairserve.platform.tenancy.apps.control_events import load_control_events
from fairserve.platform.tenancy.profiles.changes import ProfileChanges, profile_versions
from fairserve.platform.tenancy.profiles.learning import STEADY, learn_profiles
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.events import AppChanged

NOW = datetime.now(UTC)
OPTIONS = LearningOptions()
PROFILE = {
    "stages": [{"input_tokens": 10_000, "output_tokens": 1000}],
    "calls_per_interaction": 1000,
    "idle_timeout_s": 60,
}


class World:
    """An app over the management endpoints, and rows of its calls."""

    def __init__(self, management):
        self.management = management
        self.sessions = management.state.session_factory
        self.tenant = management.new_tenant("acme")
        self.app = management.new_app(self.tenant, profile=PROFILE)
        self.path = f"/v1/apps/{self.app['id']}"
        self.changes = ProfileChanges(
            self.sessions, management.control, OPTIONS, profile_versions(self.sessions)
        )
        self.runs = 0

    def served(self, runs, calls=2, tokens=(400, 50, 100), *, ended=True, minutes_ago=1.0):
        """Write the given number of interactions and calls."""
        at = (NOW - timedelta(minutes=minutes_ago)).timestamp()
        owner = {"tenant": self.tenant["id"], "app": self.app["id"]}
        records, over = [], []
        for _ in range(runs):
            self.runs += 1
            run, user = f"r{self.runs}", f"u{self.runs % 7}"
            records += [
                call_record(
                    f"c-{run}-{stage}",
                    user=user,
                    interaction_id=run,
                    stage=stage,
                    agent="planner" if stage == 1 else None,
                    accepted_at=at,
                    input_tokens=tokens[0] * stage,
                    system_tokens=tokens[1],
                    cached_tokens=tokens[1],
                    output_tokens=tokens[2],
                    expected_output_tokens=tokens[2] * 2,
                    **owner,
                )
                for stage in range(1, calls + 1)
            ]
            times = {"opened_at": at, "ended_at": at}
            waste = {"tokens": 0, "wasted_tokens": 0}
            owned = {**owner, **times, **waste, "user": user}
            over.append(InteractionRecord(run, state="complete", calls=calls, **owned))
        with self.sessions.begin() as session:
            upsert_calls(session, records)
            if ended:
                upsert_interactions(session, over)

    def learn(self, minutes=0.0):
        return learn_profiles(self.sessions, OPTIONS, now=lambda: NOW + timedelta(minutes=minutes))

    def view(self, path="/profile"):
        return self.management.call(self.tenant["api_key"], "GET", self.path + path)

    def set_mode(self, mode, profile=None, status=200):
        path = f"/admin{self.path.removeprefix('/v1')}/profile"
        body = {"mode": mode} | ({} if profile is None else {"profile": profile})
        return self.management.call(self.management.admin_key, "PUT", path, body, status=status)

    def in_control(self):
        """Return the profile that control got by events, and the one it would load at a start."""
        with self.sessions() as session:
            (event,) = load_control_events(session, OPTIONS)
        return event.profile


@pytest.fixture
def world(management):
    return World(management)


def test_a_declared_profile_applies_within_its_trust(world):
    found = world.view()
    held = found["in_force"]
    assert (found["mode"], held["source"], held["version"]) == ("learned", "declared", 1)
    assert held["author"] == world.tenant["api_key"][:12]
    assert held["profile"]["believed_tokens"] == OPTIONS.believed_tokens
    assert held["profile"]["calls_per_interaction"] == OPTIONS.believed_calls
    assert found["declared"]["calls_per_interaction"] == 1000
    assert (found["seen"]["calls"], found["prediction"]) == (0, None)
    assert world.learn() == 0
    assert world.view("/profile/history")["total"] == 1


@ON_POSTGRESQL
def test_learned_usage_is_published_to_control(world):
    world.served(runs=120)
    assert world.changes.poll() == []
    assert world.learn() == 1
    found = world.view()
    held = found["in_force"]["profile"]
    assert found["in_force"]["source"] == "learned"
    same = {"system_tokens": 50, "cached_tokens": 50, "output_tokens": 100}
    assert held["stages"][0] == {"input_tokens": 400, **same}
    assert held["stages"][1] == {"input_tokens": 800, **same}
    assert (held["p99_calls"], held["p99_tokens"]) == (2, 400 + 800 + 2 * 150)
    assert (held["calls_per_interaction"], held["idle_timeout_s"]) == (2, 60)
    (of_agent,) = held["agents"]["planner"]
    assert held["stages"][0] == {**of_agent, "cached_tokens": 50}
    assert found["seen"]["stages"][0]["input_tokens"] == {
        "expected": 400,
        "median": 400,
        "p90": 400,
    }
    assert found["declared"]["stages"][0]["input_tokens"] == 10_000
    (event,) = world.changes.poll()
    assert isinstance(event, AppChanged)
    directory = Directory()
    for each in (world.management.control.events[-1], event):
        directory.take(each)
    assert directory.profile(world.app["id"]) == event.profile
    assert event.app == world.app["id"]
    assert event.profile == world.in_control()
    assert event.profile.stage(2).input_tokens == 800
    assert event.limits.user_rpm is None
    assert world.changes.poll() == []


@pytest.mark.parametrize("change", ["profile", "limits"])
def test_a_poll_never_undoes_a_later_change(world, change):
    """The poll reads the learned profile, and sends it after a change by the API."""
    world.served(runs=120)
    world.learn()
    (late,) = world.changes.poll()
    if change == "profile":
        world.set_mode("pinned", {"stages": [{"input_tokens": 7, "output_tokens": 3}]})
    else:
        body = {"limits": {"user_rpm": 9}}
        world.management.call(world.tenant["api_key"], "PATCH", world.path, body)
    present = world.management.control.events[-1]
    directory = Directory()
    for event in (present, late):
        directory.take(event)
    assert directory.profile(world.app["id"]) == present.profile
    assert directory.limits(world.app["id"], "t", "u") == present.limits
    assert (late.profile, late.limits) != (present.profile, present.limits)


def test_a_repeated_pass_changes_nothing(world):
    world.served(runs=120)
    assert [world.learn(minutes) for minutes in (0, 1, 20, 60)] == [1, 0, 0, 0]
    with world.sessions() as session:
        assert list(session.scalars(select(ProfileVersion.version))) == [1, 2]


def test_a_learned_profile_is_reviewed_occasionally(world):
    world.served(runs=120)
    world.learn()
    world.served(runs=400, tokens=(40, 5, 10))
    steady = STEADY.total_seconds() / 60
    assert world.learn(minutes=steady / 2) == 0
    assert world.learn(minutes=steady) == 1
    assert world.view()["in_force"]["profile"]["stages"][0]["input_tokens"] < 200


def test_a_learned_profile_is_reviewed_after_the_clock_went_back(world):
    world.served(runs=120)
    world.learn()
    world.served(runs=400, tokens=(40, 5, 10))
    with world.sessions.begin() as session:
        session.get(App, world.app["id"]).profile_looked_at = NOW + timedelta(days=400)
    assert world.learn(minutes=1) == 1


def test_daily_growth_is_bounded(world):
    world.served(runs=120)
    world.learn()
    world.served(runs=600, tokens=(40_000, 5000, 10_000))
    day = 24 * 60
    with world.sessions.begin() as session:  # the rows must be recent at that time as well
        session.get(App, world.app["id"]).profile_looked_at = None
    assert world.learn(minutes=day / 2) == 1
    stage = world.view()["in_force"]["profile"]["stages"][0]
    assert stage["input_tokens"] + stage["system_tokens"] + stage["output_tokens"] == pytest.approx(
        550 * 2**0.5
    )
    assert "2 times a day" in world.view()["in_force"]["reason"]


def test_declaring_again_keeps_the_learned_profile(world):
    world.served(runs=120)
    world.learn()
    before = world.view()["in_force"]
    for factor in (10, 1000):
        stages = [{"input_tokens": 100 * factor, "output_tokens": factor}]
        profile = {"stages": stages, "idle_timeout_s": 30 + factor}
        world.management.call(world.tenant["api_key"], "PATCH", world.path, {"profile": profile})
        held = world.view()["in_force"]
        assert held["profile"]["stages"] == before["profile"]["stages"]
        profile = world.management.control.events[-1].profile
        assert profile.idle_timeout_s == 30 + factor
        assert profile == world.in_control()
    assert world.learn() == 0


def test_each_mode_selects_its_profile(world):
    world.served(runs=120)
    world.learn()
    pinned = {"stages": [{"input_tokens": 7, "output_tokens": 3}], "calls_per_interaction": 5}
    held = world.set_mode("pinned", pinned)["in_force"]
    assert (held["source"], held["profile"]["stages"][0]["input_tokens"]) == ("pinned", 7)
    assert held["author"] == world.management.admin_key[:12]
    assert world.management.control.events[-1].profile.stage(1).input_tokens == 7
    assert world.learn(minutes=60) == 0
    world.management.call(world.tenant["api_key"], "PATCH", world.path, {"profile": PROFILE})
    assert world.in_control().stage(1).input_tokens == 7
    held = world.set_mode("declared")["in_force"]["profile"]
    assert (held["stages"][0]["input_tokens"], held["believed_tokens"]) == (10_000, None)
    assert world.in_control().believed_tokens is None
    assert world.learn(minutes=60) == 0
    world.set_mode("learned")
    assert world.learn(minutes=2) == 1
    assert world.in_control().stage(1).input_tokens == 400
    history = world.view("/profile/history")
    assert [item["version"] for item in history["items"]] == [5, 4, 3, 2, 1]
    assert [item["source"] for item in history["items"]] == [
        "learned", "declared", "pinned", "learned", "declared",
    ]  # fmt: skip
    assert world.set_mode("learned", PROFILE, status=400)["error"]["param"] == "profile"


def test_pinning_keeps_the_present_profile(world):
    world.served(runs=120)
    world.learn()
    before = world.in_control()
    world.set_mode("pinned")
    world.served(runs=400, tokens=(40, 5, 10))
    assert world.learn(minutes=60) == 0
    assert world.in_control() == before


def test_without_learning_the_declared_profile_applies(world):
    world.served(runs=120)
    world.learn()
    with world.sessions() as session:
        (event,) = load_control_events(session, None)
    assert event.profile == AppProfile.from_plain(PROFILE | {"stages": [
        {"input_tokens": 10_000, "system_tokens": 0, "output_tokens": 1000}
    ]})  # fmt: skip


def test_unfinished_runs_do_not_count_as_short(world):
    world.served(runs=120, calls=1, ended=False)
    assert world.learn() == 1
    assert world.view()["seen"]["interactions"] == 0
    assert world.in_control().calls_per_interaction == OPTIONS.believed_calls


@ON_POSTGRESQL
def test_predicted_output_is_compared_with_generated_output(world):
    world.served(runs=10)
    assert world.view()["prediction"] == {
        "calls": 20,
        "mean_output_tokens": 100,
        "mean_error_tokens": 100,
        "mean_absolute_error_tokens": 100,
        "within_half": 1.0,
    }


def test_another_tenant_cannot_see_the_profile(world):
    other = world.management.new_tenant("other")
    for path in ("/profile", "/profile/history"):
        world.management.call(other["api_key"], "GET", world.path + path, status=404)
    path = f"/admin{world.path.removeprefix('/v1')}/profile"
    world.management.call(world.tenant["api_key"], "PUT", path, {"mode": "pinned"}, status=403)
    missing = "/admin/apps/app_none/profile"
    world.management.call(
        world.management.admin_key, "PUT", missing, {"mode": "pinned"}, status=404
    )
