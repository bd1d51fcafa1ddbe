"""A TCP proxy in front of a database, which takes it away on demand."""

import asyncio
import contextlib
from urllib.parse import urlsplit

from anyio.from_thread import start_blocking_portal


class DatabaseProxy:
    """Forwards connections on the present event loop.

    While it is ``away``, it breaks all of them; while it hangs, it keeps them and forwards nothing.
    """

    def __init__(self, database_url):
        parts = urlsplit(database_url)
        self._host, self._port = parts.hostname, parts.port
        self._parts = parts
        self._writers, self._tasks = set(), set()
        self.away = False
        self._flows = asyncio.Event()
        self._flows.set()

    async def start(self):
        """Listen; ``url`` is then that of the database through this proxy."""
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = self._parts._replace(netloc=f"{self._parts.username}@127.0.0.1:{port}").geturl()

    def cut(self):
        """Break all connections and accept no others until :meth:`restore`."""
        self.away = True
        for writer in self._writers:
            writer.transport.abort()

    def hang(self):
        """Forward nothing until :meth:`restore`."""
        self._flows.clear()

    def restore(self):
        self.away = False
        self._flows.set()
        self._flows = asyncio.Event()
        self._flows.set()

    async def close(self):
        self._flows.set()
        self.cut()
        self._server.close()
        await asyncio.gather(*self._tasks)

    async def _forward(self, reader, writer):
        self._writers.add(writer)
        self._tasks.add(asyncio.current_task())
        try:
            if self.away:
                return
            above_reader, above = await asyncio.open_connection(self._host, self._port)
            if self.away:  # since
                above.transport.abort()
                return
            self._writers.add(above)
            try:
                await asyncio.gather(self._copy(reader, above), self._copy(above_reader, writer))
            finally:
                self._writers.discard(above)
                above.transport.abort()
        finally:
            self._writers.discard(writer)
            self._tasks.discard(asyncio.current_task())
            writer.transport.abort()

    async def _copy(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextlib.contextmanager
def proxied(database_url):
    """Yield a proxy on an event loop of its own, with functions for tests of other threads."""
    with start_blocking_portal() as portal:
        proxy = DatabaseProxy(database_url)
        portal.call(proxy.start)
        try:
            yield ProxyControl(proxy, portal)
        finally:
            portal.call(proxy.close)


class ProxyControl:
    """The functions of a proxy that runs in another thread."""

    def __init__(self, proxy, portal):
        self.url = proxy.url
        self._proxy, self._portal = proxy, portal

    def cut(self):
        self._portal.call(self._proxy.cut)

    def hang(self):
        self._portal.call(self._proxy.hang)

    def restore(self):
        self._portal.call(self._proxy.restore)
