"""Redis with two replicas, and three sentinels that notice faults soon."""

import subprocess

import redis
from processes import eventually, free_port
from redis_process import RedisProcess

SERVICE = "cell"
DOWN_MS, FAILOVER_MS = 500, 3_000
FLAGS = ("--repl-diskless-sync-delay", "0", "--min-replicas-to-write", "1")


class WatchedRedis:
    """Three servers, of which one is the primary, and their sentinels."""

    def __init__(self, folder):
        """Start all of them, in a folder."""
        first = RedisProcess(folder / "first", *FLAGS)
        copies = ("--replicaof", "127.0.0.1", str(first.port))
        others = [RedisProcess(folder / name, *FLAGS, *copies) for name in ("second", "third")]
        self.servers = {each.port: each for each in (first, *others)}
        self._ports = [free_port() for _ in range(3)]
        eventually(
            lambda: all(_follows(each.port) for each in others), "the replicas do not follow"
        )
        self._sentinels = [started_sentinel(folder, first.port, port=port) for port in self._ports]
        eventually(
            lambda: all(map(_knows_all, self._ports)), "the sentinels do not find each other"
        )

    @property
    def url(self):
        """The ``redis_url`` that names the sentinels."""
        sentinels = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"redis+sentinel://{sentinels}/{SERVICE}/0"

    def primary(self):
        """Return the port of the primary, as the first sentinel knows it."""
        with redis.Redis(port=self._ports[0]) as client:
            return int(client.sentinel_get_master_addr_by_name(SERVICE)[1])

    def fail_over(self):
        """Have the sentinels make the replica the primary, as an operator does."""
        with redis.Redis(port=self._ports[0]) as client:
            client.execute_command("SENTINEL FAILOVER", SERVICE)

    def apart(self):
        """Return the servers that do not follow the primary, by port, with what they follow."""
        primary, found = self.primary(), {}
        for port in self.servers:
            with redis.Redis(port=port, socket_timeout=1.0) as client:
                known = client.info("replication")
            follows = (known.get("master_port"), known.get("master_link_status"))
            expected = (None, None) if port == primary else (primary, "up")
            if follows != expected:
                found[port] = follows
        return found

    def close(self):
        for process in self._sentinels:
            process.kill()
            process.wait()
        for server in self.servers.values():
            server.kill()


def _follows(port):
    with redis.Redis(port=port) as client:
        return client.info("replication")["master_link_status"] == "up"


def started_sentinel(folder, primary, *more, port=None):
    """Start a sentinel of the server at a port. ``more`` are lines of its configuration."""
    lines = [
        f"dir {folder}",
        "bind 127.0.0.1",
        *([] if port is None else [f"port {port}"]),
        *more,
        f"sentinel monitor {SERVICE} 127.0.0.1 {primary} 2",
        f"sentinel down-after-milliseconds {SERVICE} {DOWN_MS}",
        f"sentinel failover-timeout {SERVICE} {FAILOVER_MS}",
    ]
    path = folder / f"sentinel-{port}.conf"
    path.write_text("\n".join(lines) + "\n")
    return subprocess.Popen(["redis-server", path, "--sentinel"], stdout=subprocess.DEVNULL)


def _knows_all(port):
    try:
        with redis.Redis(port=port) as client:
            found = client.sentinel_master(SERVICE)
    except redis.ConnectionError:
        return False
    return (found["num-other-sentinels"], found["num-slaves"]) == (2, 2)
