"""A TCP proxy in front of a database, which takes it away on demand."""

import contextlib
from urllib.parse import urlsplit

from anyio.from_thread import start_blocking_portal
from link_proxy import LinkProxy


class DatabaseProxy(LinkProxy):
    """Forwards connections on the present event loop.

    While it is ``away``, it breaks all of them; while it hangs, it keeps them and forwards nothing.
    """

    hang = LinkProxy.cut

    def __init__(self, database_url):
        self._parts = urlsplit(database_url)
        super().__init__(self._parts.port, self._parts.hostname)
        self.away = False

    async def start(self):
        """Listen; ``url`` is then that of the database through this proxy."""
        await super().start()
        address = f"{self._parts.username}@127.0.0.1:{self.port}"
        self.url = self._parts._replace(netloc=address).geturl()

    def cut(self):
        """Break all connections and accept no others until :meth:`restore`."""
        self.away = True
        for writer in self._writers:
            writer.transport.abort()

    def restore(self):
        self.away = False
        super().restore()

    async def _forward(self, reader, writer):
        if self.away:
            writer.transport.abort()
        else:
            await super()._forward(reader, writer)


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
