"""A TCP proxy as a link that can be cut: nothing passes in any direction, and no connection is reset."""

import asyncio
import contextlib


class LinkProxy:
    """Forwards connections to a port on the present event loop.

    While it is cut, bytes and ends of connections stay on their side, and new connections get no answer.
    They pass when it is restored, as with TCP over a network that lost its packets for a while.
    """

    def __init__(self, port, host="127.0.0.1"):
        self._address = host, port
        self._writers, self._tasks = set(), set()
        self._passes = asyncio.Event()
        self._passes.set()

    async def start(self):
        """Listen on ``port``."""
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self):
        self._passes.clear()

    def restore(self):
        self._passes.set()

    async def close(self):
        self._server.close()
        self.restore()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks)

    async def _forward(self, reader, writer):
        self._writers.add(writer)
        self._tasks.add(asyncio.current_task())
        try:
            await self._passes.wait()
            with contextlib.suppress(ConnectionError):
                above_reader, above = await asyncio.open_connection(*self._address)
                self._writers.add(above)
                try:
                    await asyncio.gather(
                        self._copy(reader, above), self._copy(above_reader, writer)
                    )
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
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
        await self._passes.wait()
        writer.transport.abort()
