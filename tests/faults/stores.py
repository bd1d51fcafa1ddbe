"""The Redis of a run of the faults: one server, or three of which sentinels name the primary."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import redis
from link_proxy import LinkProxy
from linked_namespace import LinkedNamespace
from processes import eventually
from redis_process import RedisProcess
from watched_redis import WatchedRedis

OTHERS = "all others"
"""Name of the link of who has none of its own."""


class NamespaceLinks:
    """Redis in a network namespace of its own, to which each server has a link; as root."""

    def __init__(self, folder, names):
        self._names = names
        self._namespace = LinkedNamespace([OTHERS, *names])
        host = self._namespace.addresses[OTHERS]
        everywhere = ["--bind", "0.0.0.0", "--protected-mode", "no"]
        options = {"prefix": self._namespace.prefix, "host": host}
        self.server = RedisProcess(folder / "redis", *everywhere, keeps=True, **options)
        self.cut, self.restore = self._namespace.cut, self._namespace.restore

    async def start(self):
        pass

    @property
    def urls(self):
        addresses = self._namespace.addresses
        return {name: f"redis://{addresses[name]}:{self.server.port}/0" for name in self._names}

    async def close(self):
        self.server.close()
        self._namespace.close()


class ProxyLinks:
    """Redis beside proxies that cut the connections of each server."""

    def __init__(self, folder, names):
        self.server = RedisProcess(folder / "redis", keeps=True)
        self._links = {name: LinkProxy(self.server.port) for name in names}

    async def start(self):
        for link in self._links.values():
            await link.start()

    @property
    def urls(self):
        return {name: f"redis://127.0.0.1:{link.port}/0" for name, link in self._links.items()}

    def cut(self, name):
        self._links[name].cut()

    def restore(self, name):
        self._links[name].restore()

    async def close(self):
        for link in self._links.values():
            await link.close()
        self.server.close()


class OneRedis:
    """One server, to which each API server has a link that can be cut."""

    faults: ClassVar = {
        "cut the link of an API server to Redis": 3,
        "kill Redis": 3,
        "empty Redis": 3,
        "kill the speaker and Redis": 2,
        "empty Redis and kill the speaker": 1,
    }

    def __init__(self, folder, names):
        try:
            self._links = NamespaceLinks(folder, names)
        except OSError as error:
            print(f"links are cut in a proxy, not between network namespaces: {error}")
            self._links = ProxyLinks(folder, names)
        self._server, self.start, self.close = (
            self._links.server,
            self._links.start,
            self._links.close,
        )
        self.url = self._server.url

    @property
    def urls(self):
        """The address of Redis for each API server."""
        return self._links.urls

    def client(self):
        return redis.Redis.from_url(self.url)

    async def hit(self, what, name):
        if "link" in what:
            self._links.cut(name)
        elif "Redis" in what:
            self._server.kill()

    async def mend(self, what, name):
        if "link" in what:
            self._links.restore(name)
        elif "Redis" in what:
            if "empty" in what:
                self._server.empty()
            await asyncio.to_thread(self._server.start)

    def unready(self):
        return None


class SentinelRedis:
    """Three servers and three sentinels. A fault ends once a replica is the primary."""

    faults: ClassVar = {
        "kill the primary of Redis": 4,
        "suspend the primary of Redis": 3,
        "move the primary of Redis": 2,
        "kill a replica of Redis": 1,
        "kill the speaker and the primary of Redis": 2,
    }
    urls: ClassVar = {}

    def __init__(self, folder, names):
        (folder / "redis").mkdir()
        self._servers = WatchedRedis(folder / "redis")
        self.url = self._servers.url

    async def start(self):
        pass

    def client(self):
        return redis.Redis(port=self._servers.primary(), socket_timeout=1.0)

    async def hit(self, what, name):
        if "Redis" in what:
            await asyncio.to_thread(self._hit, what)

    def _hit(self, what):
        self._primary = self._servers.primary()
        replica = next(port for port in self._servers.servers if port != self._primary)
        self._server = self._servers.servers[replica if "replica" in what else self._primary]
        if "kill" in what:
            self._server.kill()
        elif "suspend" in what:
            self._server.suspend()
        else:
            self._servers.fail_over()

    async def mend(self, what, name):
        if "Redis" in what:
            await asyncio.to_thread(self._mend, what)

    def _mend(self, what):
        if "primary" in what:
            eventually(self._failed_over, "no replica becomes the primary")
        if "kill" in what:
            self._server.start()
        elif "suspend" in what:
            self._server.resume()

    def _failed_over(self):
        return self._servers.primary() != self._primary

    def unready(self):
        """Return the servers that do not follow the primary."""
        try:
            return self._servers.apart()
        except redis.RedisError as error:
            return repr(error)

    async def close(self):
        self._servers.close()


STORES = {"one": OneRedis, "sentinels": SentinelRedis}
