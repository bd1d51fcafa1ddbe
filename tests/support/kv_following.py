"""The reader's side of a worker's cache over real sockets, with functions to wait for it."""

import asyncio
import contextlib

import zmq

from fairserve.engine.kv_events.dialect import BlockStored
from fairserve.engine.kv_events.subscriber import KvSubscriber
from fairserve.engine.kv_events.view import KvView
from fairserve.engine.wire.base import KvEndpoints
from fairserve.scheduling.locality.block_keys import BlockHasher

HASHER = BlockHasher(11, 16)
LOOK_S = 0.2


def stored(name, parent=None, *, salt=None):
    """Return one block, whose tokens are its name."""
    extra = [[salt]] if salt else None
    return BlockStored([name], parent, [name] * 16, 16, medium="GPU", extra_keys=extra)


class Following:
    """A subscriber and all that it posted; a context manager that closes it at the end."""

    def __init__(self, publisher=None, *, endpoints=None, **options):
        self.reports, self._changed = [], asyncio.Event()
        self.view = KvView("w", HASHER, 1 << 16)
        self.context = zmq.Context()
        if endpoints is None:
            endpoints = KvEndpoints(publisher.endpoint, publisher.replay_endpoint)
        self.subscriber = KvSubscriber(self.context, endpoints, self.view, self._post, **options)

    def _post(self, report):
        self.reports.append(report)
        self._changed.set()

    def __enter__(self):
        self.subscriber.start()
        return self

    def __exit__(self, *exc):
        self.subscriber.close()
        self.context.destroy(linger=0)

    @property
    def stats(self):
        return self.subscriber.stats

    async def until(self, condition):
        """Wait until the condition is true; check without events as well, as they may be lost."""
        try:
            async with asyncio.timeout(60):
                while not condition():
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), LOOK_S)
        except TimeoutError:
            raise AssertionError(f"it did not happen: {self.stats}") from None
