"""Background jobs by Celery: a real Redis, real workers and beat, which are killed at any point.

``FAIRSERVE_KILLS`` says how often workers are killed (default 6).
"""

import json
import os
import random
import time
from datetime import UTC, datetime, timedelta

import pytest
import redis
from call_records import call_record
from job_processes import JobProcess
from processes import eventually, free_port
from sqlalchemy import func, select
from webhook_world import Receiver

from fairserve.interactions.profile_learning import LearningOptions
from fairserve.platform.control.record import InteractionRecord
from fairserve.platform.db.identity import App, AppLimits, Tenant, TokenProfile
from fairserve.platform.db.jobs import JobState
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.db.profiles import ProfileVersion
from fairserve.platform.db.usage import UsageCalls, UsageDirty
from fairserve.platform.db.webhooks import WebhookDelivery, WebhookEndpoint
from fairserve.platform.jobs.celery_jobs import (
    MOST_WAITING,
    QUEUE,
    TASK,
    JobsOnCelery,
    celery_app,
)
from fairserve.platform.jobs.jobs import JOBS
from fairserve.platform.profiles.learning import learn_profiles
from fairserve.platform.settings import Settings
from fairserve.platform.usage.reconcile import compare
from fairserve.platform.wiring import Platform

KILLS = int(os.environ.get("FAIRSERVE_KILLS", "6"))
APPS = 3
PENDING = (WebhookDelivery, WebhookDelivery.state != "delivered")


class Deployment:
    """A database, a Redis, and the processes of ``fairserve jobs``."""

    def __init__(self, engine, sessions, redis_url, folder):
        self.sessions, self.folder = sessions, folder
        self.urls = {
            "database_url": engine.url.render_as_string(hide_password=False),
            "redis_url": redis_url,
        }
        self.often = {
            "usage_rollup_interval_s": 0.2,
            "profile_learning_interval_s": 0.2,
            "webhook_interval_s": 0.2,
            "webhook_timeout_s": 1,
            "webhook_allow_http": "true",
            "webhook_allowed_networks": "127.0.0.0/8",
        }
        self.server = Platform(self.settings(), engine=engine)
        """Not started: its ledger's thread is the test's."""
        self.redis = redis.Redis.from_url(redis_url)
        self.calls = 0

    def process(self, action, *flags):
        return JobProcess(action, *flags, folder=self.folder, **self.urls, **self.often)

    def settings(self, **more):
        return Settings(data_dir=self.folder / "data", secret_key="s" * 40, **self.urls, **more)

    def state(self, name):
        with self.sessions() as session:
            return session.get(JobState, name)

    def count(self, what, *where):
        with self.sessions() as session:
            return session.scalar(select(func.count()).select_from(what).where(*where))

    def new_apps(self, told=None):
        """Apps of a tenant, which wants to be ``told`` at that URL."""
        now = datetime.now(UTC)
        with self.sessions.begin() as session:
            session.add(Tenant(id="tn_1", name="acme", created_at=now))
            session.flush()
            if told is not None:
                session.add(
                    WebhookEndpoint(
                        id="wh_1",
                        tenant_id="tn_1",
                        url=told,
                        description="",
                        since={"interaction.finished": 0.0},
                        enabled=True,
                        disabled_reason="",
                        secret_version=1,
                        secret_id=self.server.hasher.secret_id,
                        failures=0,
                        created_at=now,
                    )
                )
            for number in range(APPS):
                session.add(
                    App(
                        id=f"app_{number}",
                        tenant_id="tn_1",
                        name=f"a{number}",
                        calls_per_interaction=1,
                        idle_timeout_s=60,
                        created_at=now,
                        limits=AppLimits(),
                        stages=[
                            TokenProfile(
                                stage=1, input_tokens=9000, system_tokens=0, output_tokens=900
                            )
                        ],
                    )
                )

    def served(self, runs):
        """What a server's ledger writes: a batch of interactions of two calls each."""
        calls, over = [], []
        for _ in range(runs):
            self.calls += 1
            app, run = f"app_{self.calls % APPS}", f"r{self.calls}"
            at = (datetime.now(UTC) - timedelta(minutes=self.calls % 40)).timestamp()
            owned = {"tenant": "tn_1", "app": app, "user": f"u{self.calls % 5}"}
            size = 100 * (1 + self.calls % APPS)
            calls += [
                call_record(
                    f"{run}-{stage}",
                    interaction_id=run,
                    stage=stage,
                    accepted_at=at,
                    input_tokens=size,
                    output_tokens=size // 10,
                    **owned,
                )
                for stage in (1, 2)
            ]
            over.append(
                InteractionRecord(
                    run,
                    state="complete",
                    opened_at=at,
                    ended_at=at,
                    calls=2,
                    tokens=2 * size,
                    wasted_tokens=0,
                    **owned,
                )
            )
        self.server._write_rows(calls, over)


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def deployment(engine, sessions, redis_url, tmp_path):
    return Deployment(engine, sessions, redis_url, tmp_path)


def test_beat_sends_and_workers_do(deployment):
    deployment.new_apps()
    deployment.served(runs=400)
    with deployment.process("worker") as worker, deployment.process("beat") as beat:

        def log():
            return worker.log() + beat.log()

        eventually(lambda: all(deployment.state(name) for name in JOBS), log)
        eventually(lambda: deployment.count(ProfileVersion) >= APPS, log)
        eventually(lambda: not deployment.count(UsageDirty), log)
        assert beat.stop() == 0, beat.log()
        assert worker.stop() == 0, worker.log()
    assert deployment.count(UsageCalls) > 0
    with deployment.sessions() as session:
        learned = {
            version.app_id: version.profile["stages"][0]["input_tokens"]
            for version in session.scalars(select(ProfileVersion))
        }
    assert learned == {f"app_{number}": 100 * (1 + number) for number in range(APPS)}


def test_workers_that_are_killed_leave_everything_right(deployment, receiver):
    """At random points, while rows are being written. Totals, profiles and webhooks are right."""
    deployment.new_apps(told=receiver.url)
    rng = random.Random(1)
    with deployment.process("beat") as beat:
        for _ in range(KILLS):
            before = deployment.redis.llen(QUEUE)
            with deployment.process("worker", "--pool=solo") as worker:
                deployment.served(runs=40)
                eventually(lambda: _took(deployment, before), lambda: beat.log() + worker.log())  # noqa: B023
                until_s = time.monotonic() + rng.uniform(0, 0.4)
                while time.monotonic() < until_s:
                    deployment.served(runs=2)
                worker.kill()
        with deployment.process("worker") as worker:
            eventually(lambda: not deployment.count(UsageDirty), worker.log)
            eventually(lambda: deployment.count(ProfileVersion) >= APPS, worker.log)
            eventually(lambda: not deployment.count(*PENDING), worker.log, deadline_s=300)
    told = [json.loads(each.body)["data"]["interaction_id"] for each in receiver.received]
    assert set(told) == {f"r{number}" for number in range(1, deployment.calls + 1)}
    assert len({each.id for each in receiver.received}) == deployment.calls
    found = compare(deployment.sessions, None, None)
    assert found.differences == []
    assert deployment.count(LedgerCall) == 2 * deployment.calls
    learn_profiles(deployment.sessions, LearningOptions())
    assert learn_profiles(deployment.sessions, LearningOptions()) == 0
    with deployment.sessions() as session:
        for app in session.scalars(select(App)):
            versions = session.scalars(
                select(ProfileVersion)
                .where(ProfileVersion.app_id == app.id)
                .order_by(ProfileVersion.version)
            ).all()
            assert [v.version for v in versions] == list(range(1, app.profile_version + 1))
            size = 100 * (1 + int(app.id.removeprefix("app_")))
            assert versions[-1].profile["stages"][0]["input_tokens"] == size


def _took(deployment, before):
    """A worker has taken a message."""
    return deployment.redis.hlen("unacked") or deployment.redis.llen(QUEUE) < before


def test_a_queue_without_workers_does_not_grow(deployment):
    deployment.often = {"usage_rollup_interval_s": 0.01, "profile_learning_interval_s": 0.01}
    with deployment.process("beat") as beat:
        eventually(lambda: deployment.redis.llen(QUEUE) >= MOST_WAITING, beat.log)
        eventually(lambda: "does a worker run?" in beat.log(), beat.log)
        assert deployment.redis.llen(QUEUE) <= MOST_WAITING + 1
    with deployment.process("worker") as worker:
        eventually(lambda: deployment.redis.llen(QUEUE) == 0, worker.log)


def test_a_redis_that_forgets_everything_is_no_harm(deployment):
    deployment.new_apps()
    with deployment.process("worker") as worker, deployment.process("beat") as beat:
        eventually(lambda: deployment.state("rollup"), lambda: worker.log() + beat.log())
        deployment.redis.flushall()
        deployment.served(runs=100)
        eventually(lambda: not deployment.count(UsageDirty), lambda: worker.log() + beat.log())


def test_a_server_asks_workers_for_a_job(deployment):
    app = celery_app(deployment.settings())
    with deployment.process("worker") as worker:
        assert app.send_task(TASK + "rollup").get(timeout=60) == 0, worker.log()
        JobsOnCelery(deployment.settings()).request("retention")
        eventually(lambda: deployment.state("retention"), worker.log)
    assert deployment.state("rollup") is not None
    app.close()


def test_a_job_that_is_asked_for_while_redis_is_away_is_no_error(deployment, caplog):
    deployment.urls["redis_url"] = f"redis://127.0.0.1:{free_port()}/0"
    JobsOnCelery(deployment.settings()).request("rollup")
    assert "the job rollup waits for Redis" in caplog.text


def test_without_a_redis_there_is_no_celery(tmp_path):
    with pytest.raises(ValueError, match="FAIRSERVE_REDIS_URL"):
        celery_app(Settings(data_dir=tmp_path))
