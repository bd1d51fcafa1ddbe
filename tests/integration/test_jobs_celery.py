"""Background jobs run by Celery, with a real Redis, workers and beat over one PostgreSQL database.

Beat and the workers are shared by the tests of this module, and one test kills them at any point.
Rows that were written before remain in the database: every total is that of all tests so far.
"""

import json
import random
from datetime import UTC, datetime, timedelta

import kombu
import pytest
import redis
from call_records import call_record
from job_processes import JobProcess
from processes import eventually, free_port
from redis_process import RedisProcess
from sqlalchemy import delete, func, select, update
from watched_redis import WatchedRedis
from webhook_world import Receiver

from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.background.jobs import broker
from fairserve.platform.background.jobs.celery_jobs import (
    MOST_WAITING,
    QUEUE,
    TASK,
    JobsOnCelery,
    celery_app,
)
from fairserve.platform.background.jobs.jobs import JOBS
from fairserve.platform.control.messages import InteractionRecord, Rows
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.db.identity import App, AppLimits, Tenant, TokenProfile
from fairserve.platform.db.jobs import JobState
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.db.profiles import ProfileVersion
from fairserve.platform.db.usage import UsageCalls, UsageDirty
from fairserve.platform.db.webhooks import WebhookDelivery, WebhookEndpoint
from fairserve.platform.reporting.usage.reconcile import compare
from fairserve.platform.server.lifecycle import Platform
from fairserve.platform.server.settings import Settings
from fairserve.platform.tenancy.profiles.learning import learn_profiles

APPS = 3
PENDING = (WebhookDelivery, WebhookDelivery.state != "delivered")


class Deployment:
    """A database, a Redis, the processes of ``fairserve jobs``, and a receiver of webhooks."""

    def __init__(self, database_url, redis_url, folder):
        self.folder = folder
        self.urls = {"database_url": database_url, "redis_url": redis_url}
        self.often = {
            "webhook_allowed_networks": "127.0.0.0/8",
        }
        self.engine = connect(database_url)
        self.sessions = session_factory(self.engine)
        self.server = Platform(self.settings(), engine=self.engine)
        """Return the platform, not started: the test runs its ledger."""
        self.redis = redis.Redis.from_url(redis_url)
        self.redis.flushdb()
        self.receiver = Receiver()
        self.calls = 0
        self.beat = self.process("beat").start()
        self._worker = None

    def worker(self, *flags):
        """Return the running worker, or start one."""
        if self._worker is None:
            self._worker = self.process("worker", *flags).start()
        return self._worker

    def kill_worker(self):
        self._worker.kill()
        self._worker = None

    def stop_worker(self):
        """Stop the worker as an operator does; return its exit code."""
        worker, self._worker = self._worker, None
        return worker.stop()

    def close(self):
        """End all processes that are still running."""
        for process in (self.beat, self._worker):
            if process is not None and process.process.poll() is None:
                process.kill()
        self.receiver.close()
        self.redis.close()
        self.engine.dispose()

    def log(self):
        return "".join(p.log() for p in (self.beat, self._worker) if p is not None)

    def process(self, action, *flags):
        return JobProcess(action, *flags, folder=self.folder, **self.urls, **self.often)

    def settings(self, **more):
        return Settings(data_dir=self.folder / "data", secret_key="s" * 40, **self.urls, **more)

    def state(self, name):
        with self.sessions() as session:
            return session.get(JobState, name)

    def forget(self, name):
        """Drop the state of a job, as if it had never run."""
        with self.sessions.begin() as session:
            session.execute(delete(JobState).where(JobState.name == name))

    def count(self, what, *where):
        with self.sessions() as session:
            return session.scalar(select(func.count()).select_from(what).where(*where))

    def new_apps(self):
        """Create apps of a tenant that subscribes to every run."""
        now = datetime.now(UTC)
        with self.sessions.begin() as session:
            session.add(Tenant(id="tn_1", name="acme", created_at=now))
            session.flush()
            session.add(
                WebhookEndpoint(
                    id="wh_1",
                    tenant_id="tn_1",
                    url=self.receiver.url,
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

    def let_leases_expire(self):
        """Expire the leases that killed workers hold on deliveries, instead of waiting for seconds."""
        with self.sessions.begin() as session:
            leased = update(WebhookDelivery).where(WebhookDelivery.lease_until.is_not(None))
            session.execute(leased.values(lease_until=utc_now()))

    def served(self, runs):
        """Write a batch of interactions with two calls each, as the ledger of a server does."""
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
        self.server.storage.rows.write(Rows(calls, over))


@pytest.fixture(scope="module")
def deployment(new_postgres_url, redis_server, tmp_path_factory):
    redis_url = f"redis://127.0.0.1:{redis_server}/1"
    deployment = Deployment(new_postgres_url(), redis_url, tmp_path_factory.mktemp("jobs"))
    try:
        deployment.new_apps()
        yield deployment
        assert deployment.beat.stop() == 0, deployment.beat.log()
    finally:
        deployment.close()


def test_beat_schedules_and_workers_run_jobs(deployment):
    deployment.served(runs=90)
    deployment.worker()
    eventually(lambda: all(deployment.state(name) for name in JOBS), deployment.log)
    eventually(lambda: deployment.count(ProfileVersion) >= APPS, deployment.log)
    eventually(lambda: not deployment.count(UsageDirty), deployment.log)
    assert deployment.count(UsageCalls) > 0
    with deployment.sessions() as session:
        learned = {
            version.app_id: version.profile["stages"][0]["input_tokens"]
            for version in session.scalars(select(ProfileVersion))
        }
    assert learned == {f"app_{number}": 100 * (1 + number) for number in range(APPS)}


def test_a_server_requests_a_job_of_the_workers(deployment):
    deployment.worker()
    eventually(lambda: deployment.state("retention"), deployment.log)
    deployment.forget("retention")
    # Beat sends this job once an hour.
    JobsOnCelery(deployment.settings()).request("retention")
    eventually(lambda: deployment.state("retention"), deployment.log)


def test_a_redis_that_loses_its_data_does_no_harm(deployment):
    deployment.worker()
    eventually(lambda: deployment.state("rollup"), deployment.log)
    deployment.redis.flushdb()
    deployment.served(runs=50)
    eventually(lambda: not deployment.count(UsageDirty), deployment.log)


def test_a_queue_without_workers_does_not_grow(deployment):
    deployment.worker()
    eventually(lambda: deployment.state("rollup"), deployment.log)
    assert deployment.stop_worker() == 0, deployment.log()
    app = celery_app(deployment.settings())
    with deployment.beat.paused():
        for _ in range(MOST_WAITING - 5 - deployment.redis.llen(QUEUE)):
            app.send_task(TASK + "rollup", ignore_result=True)
    app.close()
    eventually(lambda: "check that a worker is running" in deployment.beat.log(), deployment.log)
    assert deployment.redis.llen(QUEUE) == MOST_WAITING
    deployment.redis.delete(QUEUE)


@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.deep)])
def test_killed_workers_leave_consistent_data(deployment, kills, seed):
    """Workers are killed at random points during writes; totals, profiles and webhooks are right."""
    rng = random.Random(seed)
    for _ in range(kills):
        before = deployment.redis.llen(QUEUE)
        deployment.worker("--pool=solo")
        deployment.served(runs=40)
        eventually(lambda: _message_taken(deployment, before), deployment.log)  # noqa: B023
        for _ in range(rng.randrange(40)):
            deployment.served(runs=2)
        deployment.kill_worker()
    deployment.let_leases_expire()
    deployment.worker()
    eventually(lambda: not deployment.count(UsageDirty), deployment.log)
    eventually(lambda: deployment.count(ProfileVersion) >= APPS, deployment.log)
    eventually(lambda: not deployment.count(*PENDING), deployment.log)
    received = deployment.receiver.received
    run_ids = [json.loads(each.body)["data"]["interaction_id"] for each in received]
    assert set(run_ids) == {f"r{number}" for number in range(1, deployment.calls + 1)}
    assert len({each.id for each in received}) == deployment.calls
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


def _message_taken(deployment, before):
    """Return whether a worker has taken a message."""
    return deployment.redis.hlen("unacked") or deployment.redis.llen(QUEUE) < before


def test_requesting_a_job_without_redis_is_no_error(tmp_path, caplog, monkeypatch):
    """The request does not wait for Redis either."""
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _: pytest.fail("it waits"))
    url = f"redis://127.0.0.1:{free_port()}/0"
    JobsOnCelery(Settings(data_dir=tmp_path, redis_url=url)).request("rollup")
    assert "cannot request job rollup, Redis error" in caplog.text


def test_celery_requires_redis(tmp_path):
    with pytest.raises(ValueError, match="FAIRSERVE_REDIS_URL"):
        celery_app(Settings(data_dir=tmp_path))


def test_a_worker_survives_a_redis_that_accepts_no_writes(deployment, tmp_path, caplog):
    server = RedisProcess(tmp_path / "redis")
    urls = {**deployment.urls, "redis_url": server.url}
    worker = JobProcess("worker", folder=tmp_path, **urls).start()
    settings = Settings(data_dir=tmp_path, secret_key="s" * 40, **urls)
    jobs = JobsOnCelery(settings)
    deployment.forget("retention")
    try:
        jobs.request("retention")
        eventually(lambda: deployment.state("retention"), worker.log)
        with redis.Redis.from_url(server.url) as client:
            client.config_set("min-replicas-to-write", 1)  # as after the loss of a replica
            jobs.request("retention")
            assert "cannot request job retention, Redis error" in caplog.text
            eventually(lambda: "NOREPLICAS" in worker.log(), worker.log)
            client.config_set("min-replicas-to-write", 0)
            deployment.forget("retention")
            jobs.request("retention")
            eventually(lambda: deployment.state("retention"), worker.log)
            app = celery_app(settings)
            deployment.forget("rollup")
            app.send_task(TASK + "rollup")
            eventually(lambda: deployment.state("rollup"), worker.log)
            app.close()
            assert worker.stop() == 0, worker.log()
            assert not client.keys("celery-task-meta-*"), "a worker that cannot write a result ends"
    finally:
        worker.kill(), server.close()


def test_a_connection_that_is_gone_is_closed_with_messages_in_progress(redis_server):
    """As it is in a worker whose connection is lost while it runs a job: it would end."""
    broker.register()
    connection = kombu.Connection(f"redis://127.0.0.1:{redis_server}/5")
    queue = connection.SimpleQueue("in-progress")
    queue.put("job")
    assert queue.get(timeout=10).payload == "job"
    connection.transport.client = None  # Celery connects again with another transport
    connection.close()
    assert not connection.connected


def test_a_worker_survives_a_failover(deployment, tmp_path):
    """The new primary rejects writes for a while, too, as one that has no replica yet."""
    servers = WatchedRedis(tmp_path)
    urls = {**deployment.urls, "redis_url": servers.url}
    worker = JobProcess("worker", folder=tmp_path, **urls).start()
    jobs = JobsOnCelery(Settings(data_dir=tmp_path, secret_key="s" * 40, **urls))

    def ran():
        jobs.request("retention")
        return deployment.state("retention")

    def require_replicas(number):
        for port in replicas:
            with redis.Redis(port=port) as client:
                client.config_set("min-replicas-to-write", number)

    deployment.forget("retention")
    try:
        eventually(ran, worker.log)
        former = servers.primary()
        replicas = [port for port in servers.servers if port != former]
        require_replicas(2)
        servers.servers[former].kill()
        eventually(lambda: "NOREPLICAS" in worker.log(), worker.log)
        require_replicas(1)
        deployment.forget("retention")
        eventually(ran, worker.log)
        assert worker.stop() == 0, worker.log()
    finally:
        worker.kill(), servers.close()


def test_the_exit_status_of_a_worker_that_fails_is_not_0(deployment, redis_server, tmp_path):
    url = f"redis://127.0.0.1:{redis_server}/2"
    with redis.Redis.from_url(url) as client:
        client.set(QUEUE, "no list")
    worker = JobProcess("worker", folder=tmp_path, **{**deployment.urls, "redis_url": url}).start()
    try:
        assert worker.process.wait(60) == 1, worker.log()
    finally:
        worker.kill()
