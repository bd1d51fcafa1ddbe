"""A receiver of an answer whose chunks a test reads one after another."""

import asyncio


class Received:
    """Keeps what a worker client passes on: chunks, then the end or a failure, which is raised."""

    def __init__(self):
        self.starts = 0
        self.failure = None
        self.done = False
        self._items = asyncio.Queue()

    def sent_by(self, client, request, transport=None):
        """Send a call, and return the receiver."""
        self._sent = client.send(request, self, transport)
        return self

    def started(self):
        self.starts += 1

    def received(self, chunks):
        assert chunks
        assert not self.done
        for chunk in chunks:
            self._items.put_nowait(chunk)

    def ended(self):
        assert not self.done
        self.done = True
        self._items.put_nowait(None)

    def failed(self, error):
        assert not self.done
        self.done, self.failure = True, error
        self._items.put_nowait(error)

    def __aiter__(self):
        return self

    async def __anext__(self):
        item = await self._items.get()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        return item

    @property
    def may_have_begun(self):
        return self._sent.may_have_begun

    def close(self):
        self._sent.close()


def send(client, request):
    """Send a call, and return what receives its answer."""
    return Received().sent_by(client, request)
