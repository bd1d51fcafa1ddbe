"""Forms of ``redis_url`` with real servers: TLS with a private authority, sentinels."""

import asyncio
import os
import subprocess
import sys
from contextlib import suppress

import kombu.pools
import pytest
import redis
from log_members import Members
from processes import eventually, free_port
from redis.exceptions import ConnectionError
from redis_process import RedisProcess
from watched_redis import SERVICE, started_sentinel

from fairserve.platform.background.jobs.celery_jobs import QUEUE, JobsOnCelery
from fairserve.platform.base.redis_client import RedisServer, redis_client
from fairserve.platform.console.sign_in.shared_attempts import SharedAttempts
from fairserve.platform.picker.certificate import self_signed
from fairserve.platform.server.settings import Settings


class PrivateRedis:
    """A server and a sentinel that speak TLS, and another authority than theirs."""

    def __init__(self, folder):
        for name in ("own", "other"):
            key, certificate = self_signed("127.0.0.1")
            (folder / f"{name}.key").write_bytes(key)
            (folder / f"{name}.pem").write_bytes(certificate)
        self._folder, self._ports = folder, (free_port(), free_port())
        tls = {
            "tls-cert-file": f"{folder}/own.pem",
            "tls-key-file": f"{folder}/own.key",
            "tls-ca-cert-file": f"{folder}/own.pem",
            "tls-auth-clients": "no",
            "tls-replication": "yes",
        }
        server, sentinel = self._ports
        flags = [part for name, value in tls.items() for part in (f"--{name}", value)]
        self._server = RedisProcess(folder / "redis", "--tls-port", str(server), *flags)
        lines = [f"{name} {value}" for name, value in tls.items()]
        ports = ("port 0", f"tls-port {sentinel}")
        self._sentinel = started_sentinel(folder, server, *ports, *lines)
        eventually(self._sentinel_answers, "the sentinel does not start")

    def url(self, form, authority):
        """Return the URL that names the server, or its sentinel, with an authority."""
        server, sentinel = self._ports
        where = {
            "rediss": f"127.0.0.1:{server}/0",
            "rediss+sentinel": f"127.0.0.1:{sentinel}/{SERVICE}/0",
        }
        return f"{form}://{where[form]}?ssl_ca_certs={self._folder}/{authority}.pem"

    def operator(self):
        return redis.Redis(port=self._server.port)

    def close(self):
        self._sentinel.kill()
        self._sentinel.wait()
        self._server.kill()

    def _sentinel_answers(self):
        authority = f"{self._folder}/own.pem"
        with (
            suppress(redis.ConnectionError),
            redis.Redis(port=self._ports[1], ssl=True, ssl_ca_certs=authority) as client,
        ):
            return client.ping()


@pytest.fixture(scope="module")
def private(redis_server, tmp_path_factory):
    private = PrivateRedis(tmp_path_factory.mktemp("private"))
    yield private
    private.close()


@pytest.fixture
def request_job(monkeypatch):
    """Return a function that requests a job through the Redis of a URL."""

    def request(url):
        kombu.pools.reset()  # else a connection of an earlier URL is used
        monkeypatch.setenv("REDIS_URL", url)
        JobsOnCelery(Settings()).request("rollup")

    yield request
    kombu.pools.reset()


FORMS = pytest.mark.parametrize("form", ["rediss", "rediss+sentinel"])


@FORMS
async def test_order_sign_ins_and_jobs_work(private, form, request_job):
    url = private.url(form, "own")
    members = Members(url)
    try:
        _, second = await members.with_workers()
        await second.call("a")
        await members.equal()
        assert second.rows("closed") == {"a": 1}
    finally:
        await members.close()
    client = redis_client(url)
    attempts = SharedAttempts(client, "fairserve:{test}", b"secret")
    tries = [await attempts.begin("name", 1, 60) for _ in range(2)]
    assert [wait_s > 0 for _, wait_s in tries] == [False, True]
    await client.aclose()
    with private.operator() as operator:
        operator.delete(QUEUE)
        await asyncio.to_thread(request_job, url)
        assert operator.llen(QUEUE) == 1
        operator.flushall()


@FORMS
async def test_a_server_of_another_authority_gets_nothing(private, form, request_job):
    url = private.url(form, "other")
    client = redis_client(url)
    with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        await client.set("a", "b")
    await client.aclose()
    await asyncio.to_thread(request_job, url)
    with private.operator() as operator:
        assert operator.dbsize() == 0


def _answers(port):
    with redis.Redis(port=port) as client, suppress(redis.ConnectionError):
        return client.ping()


async def test_a_server_that_accepts_connections_and_does_not_answer_is_not_waited_for(tmp_path):
    server, port = RedisProcess(tmp_path / "redis"), free_port()
    sentinel = started_sentinel(tmp_path, server.port, port=port)
    url = f"redis+sentinel://127.0.0.1:{port}/{SERVICE}/0"
    client = redis_client(url, answer_s=10.0, connect_s=0.5)
    try:
        eventually(lambda: _answers(port), "the sentinel does not start")
        await client.ping()
        await client.connection_pool.disconnect()
        server.suspend()
        with pytest.raises(ConnectionError, match=f"127.0.0.1:{server.port} does not answer"):
            await client.ping()
    finally:
        await client.aclose()
        sentinel.kill()
        sentinel.wait()
        server.kill()


def test_a_server_does_not_start_with_another_authority(private, new_postgres_url, tmp_path):
    database = new_postgres_url()
    url = private.url("rediss", "other")
    env = {
        **os.environ,
        "FAIRSERVE_SECRET_KEY": "s" * 40,
        "DATABASE_URL": database,
        "REDIS_URL": url,
        "FAIRSERVE_DATA_DIR": str(tmp_path / "data"),
        "FAIRSERVE_WORKER_URLS": "http://127.0.0.1:9",
        "FAIRSERVE_PORT": "0",
        "FAIRSERVE_ROLE": "control",
    }
    command = [sys.executable, "-m", "fairserve.platform.server.cli", "serve"]
    ended = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("fairserve: redis_url: redis: no answer: "), ended.stderr
    assert "CERTIFICATE_VERIFY_FAILED" in last
    assert last.endswith("; start Redis, or correct --redis-url")


@pytest.mark.parametrize(
    ("url", "sentinels", "service", "options", "of_sentinels"),
    [
        ("redis://h:1/2", (), "", {"host": "h", "port": 1, "db": 2}, {}),
        (
            "redis+sentinel://u:p%40%2F@a,b:1,[::1]:2/main/3?sentinel_password=s",
            (("a", 26379), ("b", 1), ("::1", 2)),
            "main",
            {"username": "u", "password": "p@/", "db": 3},
            {"password": "s", "ssl": False},
        ),
        ("redis+sentinel://:p@a/main", (("a", 26379),), "main", {"password": "p"}, {"ssl": False}),
    ],
)
def test_the_parts_of_a_url(url, sentinels, service, options, of_sentinels):
    assert RedisServer.of(url) == RedisServer(options, sentinels, service, of_sentinels)


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://u:secret@a:1",
        "http://:secret@h",
        "redis://:sec/ret@h",
        "sentinel://secret",
    ],
)
def test_a_wrong_url_is_rejected_without_its_password(url):
    with pytest.raises(ValueError, match=r"^redis_url must have the form redis://") as raised:
        redis_client(url)
    assert "sec" not in str(raised.value)
