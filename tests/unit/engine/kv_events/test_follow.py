"""Publisher and subscriber exchange events over real ZMQ sockets, by TCP and by files."""

import asyncio
import itertools
import threading

import msgspec
import numpy as np
import pytest
import zmq
from kv_following import HASHER, Following, stored

from fairserve.engine.kv_events import dialect
from fairserve.engine.kv_events import publisher as publishing
from fairserve.engine.kv_events import subscriber as following
from fairserve.engine.kv_events.dialect import AllBlocksCleared, BlockRemoved, KvBatch
from fairserve.engine.kv_events.publisher import KvPublisher, KvPublisherOptions
from fairserve.engine.torch.engine import EngineOptions
from fairserve.engine.torch.engine_thread import EngineThread
from fairserve.engine.torch.page_changes import PageChanges, PageNames
from fairserve.engine.torch.sampling_params import SamplingParams
from fairserve.engine.torch.sequence import SequenceRequest
from fairserve.engine.wire.base import KvEndpoints
from fairserve.engine.wire.worker_metrics import kv_endpoints_of
from fairserve.scheduling.events import WorkerCached, WorkerCacheReset
from fairserve.scheduling.local.fcfs import Fcfs

LOOPBACK = "tcp://127.0.0.1:0"


@pytest.fixture
def publish():
    """Yield a function that starts a publisher whose changes are already events."""
    started = []

    def start(endpoint=LOOPBACK, replay=LOOPBACK, events=list, **options):
        publisher = KvPublisher(KvPublisherOptions(endpoint, replay, **options), events)
        publisher.start()
        started.append(publisher)
        return publisher

    yield start
    for publisher in started:
        publisher.close()


def keys(*names, salt=""):
    tokens = np.repeat(np.array(names, dtype=np.uint32), 16)
    return set(HASHER.keys(tokens, salt))


async def test_published_batches_are_followed(publish):
    publisher = publish()
    assert publisher.endpoint.startswith("tcp://127.0.0.1:")
    assert not publisher.endpoint.endswith(":0"), "a free port was taken"
    with Following(publisher) as reader:
        await reader.until(lambda: reader.reports)
        assert reader.reports == [WorkerCacheReset("w", complete=True)]
        publisher.put([stored(1, salt="s"), stored(2, 1)])
        publisher.put([BlockRemoved([2])])
        publisher.put([stored(3)])
        await reader.until(lambda: len(reader.reports) == 5)
        assert reader.view.keys() == keys(1, salt="s") | keys(3)
        stats = reader.stats
        assert (stats.events, stats.last_sequence, stats.gaps) == (4, 2, 0)
        assert (stats.connected, stats.complete, stats.resets, stats.blocks) == (True, True, 0, 2)


@pytest.mark.parametrize("steps", [1, 3, 100])
async def test_earlier_batches_are_replayed(publish, steps):
    """A late reader gets single batches, or the older ones as the state that they led to."""
    publisher = publish(buffer_steps=steps)
    for name in range(1, 10):
        publisher.put([stored(name, name - 1 or None)])
    publisher.put([BlockRemoved([9, 8])])
    with Following(publisher) as reader:
        await reader.until(lambda: reader.view.keys() == keys(*range(1, 8)))
        assert reader.stats.complete
        publisher.put([stored(20)])
        await reader.until(lambda: reader.view.keys() == keys(*range(1, 8)) | keys(20))


async def test_a_long_replay_arrives_completely(publish, monkeypatch):
    """A replay may be longer than the queue that ZMQ keeps for a reader by default."""
    monkeypatch.setattr(publishing, "MAX_QUEUED_STEPS", 10_000)
    publisher = publish(buffer_steps=6000)
    for name in range(1, 5001):
        assert publisher.put([stored(name), BlockRemoved([name - 1])])
    with Following(publisher, replay_s=600) as reader:
        await reader.until(lambda: reader.view.keys() == keys(5000))
        assert (reader.stats.complete, reader.stats.events) == (True, 10_000)


class Lossy:
    """A socket that loses messages."""

    def __init__(self, real, lost):
        self._real, self._lost, self._numbers = real, lost, itertools.count()
        self.used = threading.Event()

    def get(self, option):
        return self._real.get(option)

    def send_multipart(self, frames):
        if not self._lost(next(self._numbers)):
            self._real.send_multipart(frames)
        self.used.set()


async def test_gaps_are_replayed(publish):
    publisher = publish()
    publisher._published = Lossy(publisher._published, lambda n: n % 7 in (2, 3, 5))
    with Following(publisher) as reader:
        await reader.until(lambda: reader.reports)
        for name in range(1, 41):
            publisher.put([stored(name)])
        publisher.put([stored(99)])
        publisher.put([stored(100)])  # number 41 is not lost
        await reader.until(lambda: len(reader.view) == 42)
        stats = reader.stats
        assert stats.gaps > 0
        assert (stats.complete, stats.resets, stats.restarts) == (True, 0, 0)


async def test_a_missed_last_batch_is_found_later(publish, monkeypatch):
    """A second replay finds batches that were published before the subscription was known."""
    publisher = publish()
    publisher._published = Lossy(publisher._published, lambda n: True)
    with Following(publisher) as reader:
        await reader.until(lambda: reader.stats.complete)
        publisher.put([stored(1)])
        await asyncio.to_thread(publisher._published.used.wait)
        monkeypatch.setattr(following, "CHECK_S", 0.0)
        reader.subscriber._check_later()
        await reader.until(lambda: reader.view.keys() == keys(1))
        assert reader.stats.gaps == 0


@pytest.mark.parametrize("kind", ["tcp", "ipc"])
async def test_a_restarted_worker_is_detected(publish, tmp_path, kind):
    """A worker at the same address and with as many batches differs only in their content."""
    ends = (LOOPBACK, LOOPBACK) if kind == "tcp" else (f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r")
    first = publish(*ends)
    for name in (1, 2, 3):
        first.put([stored(name)])
    with Following(first) as reader:
        await reader.until(lambda: len(reader.view) == 3)
        first.close()
        second = publish(first.endpoint, first.replay_endpoint)
        for name in (4, 5, 6):
            second.put([stored(name)])
        await reader.until(lambda: reader.view.keys() == keys(4) | keys(5) | keys(6))
        assert (reader.stats.restarts, reader.stats.complete) == (1, True)


async def test_the_view_of_a_worker_that_stays_away_is_dropped(publish, monkeypatch):
    monkeypatch.setattr(following, "LOST_S", 0.01)
    first = publish()
    first.put([stored(1)])
    with Following(first) as reader:
        await reader.until(lambda: len(reader.view) == 1)
        first.close()
        await reader.until(lambda: reader.stats.complete is False)
        assert (len(reader.view), reader.stats.connected) == (0, False)
        publish(first.endpoint, first.replay_endpoint).put([stored(2)])
        await reader.until(lambda: reader.view.keys() == keys(2))
        assert reader.stats.complete


async def test_without_replays_a_late_reader_has_a_partial_view(publish):
    publisher = publish(replay="")
    publisher._published = Lossy(publisher._published, lambda n: False)
    publisher.put([stored(1)])
    await asyncio.to_thread(publisher._published.used.wait)
    with Following(publisher) as reader:
        await reader.until(lambda: reader.reports)
        assert reader.reports == [WorkerCacheReset("w", complete=False)]
        names = itertools.count(2)

        def arrived():
            """Return True once the subscription is known: earlier batches are not sent."""
            publisher.put([stored(next(names))])
            return any(isinstance(report, WorkerCached) for report in reader.reports)

        await reader.until(arrived)
        assert reader.stats.complete is False
        publisher.put([AllBlocksCleared(), stored(1)])
        await reader.until(lambda: reader.stats.complete)
        assert reader.view.keys() == keys(1)


async def test_unanswered_replays_are_abandoned(publish, monkeypatch):
    monkeypatch.setattr(following, "GIVEN_UP_S", 0.2)
    publisher = publish(replay="")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as silent:
        port = silent.bind_to_random_port("tcp://127.0.0.1")
        endpoints = KvEndpoints(publisher.endpoint, f"tcp://127.0.0.1:{port}")
        with Following(endpoints=endpoints, replay_s=0.01) as reader:
            await reader.until(lambda: len(reader.reports) >= 2)
            assert set(reader.reports) == {WorkerCacheReset("w", complete=False)}


async def test_an_invalid_batch_resets_the_view():
    """A foreign publisher sends invalid batches."""
    with (
        zmq.Context() as context,
        context.socket(zmq.PUB) as events,
        context.socket(zmq.ROUTER) as replays,
    ):
        ports = [each.bind_to_random_port("tcp://127.0.0.1") for each in (events, replays)]
        endpoints = KvEndpoints(*(f"tcp://127.0.0.1:{port}" for port in ports))
        with Following(endpoints=endpoints) as reader:
            identity, *frames = await asyncio.to_thread(replays.recv_multipart)
            assert dialect.replay_start(frames) == 0
            batch = dialect.encode(KvBatch(1.0, [stored(1)]))
            for number, payload in ((0, batch), (dialect.END, b"")):
                # The answer of vLLM before 0.32 has no topic.
                replays.send_multipart(
                    [identity, b"", number.to_bytes(8, "big", signed=True), payload]
                )
            await reader.until(lambda: reader.view.keys() == keys(1))
            events.send_multipart([b"", b"short", b""])
            events.send_multipart(dialect.message(1, msgspec.msgpack.encode([1.0, [["New"]]])))
            events.send_multipart(dialect.message(2, batch, b"topic"))
            await reader.until(lambda: len(reader.reports) == 4)
            assert reader.reports[2:] == [
                WorkerCacheReset("w", complete=False), WorkerCached("w", None, tuple(keys(1)))
            ]  # fmt: skip
            assert (reader.stats.unreadable, reader.stats.resets) == (2, 1)


async def test_nothing_is_posted_after_the_end(publish):
    publisher = publish()
    with Following(publisher) as reader:
        await reader.until(lambda: reader.reports)
        reader.subscriber.close()
        reader.subscriber.close()
        publisher.put([stored(1)])
        with Following(publisher) as other:
            await other.until(lambda: len(other.view) == 1)
        assert len(reader.reports) == 1
        assert not reader.stats.connected


@pytest.mark.parametrize(
    ("labels", "url", "found"),
    [
        (
            'endpoint="tcp://127.0.0.1:5",replay_endpoint=""',
            "http://a:1",
            ("tcp://127.0.0.1:5", ""),
        ),
        (
            'endpoint="tcp://0.0.0.0:5",replay_endpoint="tcp://0.0.0.0:6"',
            "http://host:1",
            ("tcp://host:5", "tcp://host:6"),
        ),
        (
            'endpoint="tcp://[::]:5",replay_endpoint="tcp://*:6"',
            "http://[fe80::1]:1",
            ("tcp://[fe80::1]:5", "tcp://[fe80::1]:6"),
        ),
        ('endpoint="ipc:///a/b"', "http://host:1", ("ipc:///a/b", "")),
    ],
)
def test_the_publishing_endpoint_is_read_from_metrics(labels, url, found):
    text = f"x 1\nfairserve:kv_events_info{{{labels}}} 1\ny 2\n".encode()
    assert kv_endpoints_of(text, url) == KvEndpoints(*found)
    assert kv_endpoints_of(b"vllm:num_requests_running 0\n", url) is None


# --- the publisher alone --------------------------------------------------------------------------


def test_a_publisher_that_cannot_keep_up_logs_it(publish, monkeypatch):
    monkeypatch.setattr(publishing, "MAX_QUEUED_STEPS", 2)
    publisher = KvPublisher(KvPublisherOptions(LOOPBACK), list)
    assert publisher.put([stored(1)])
    assert publisher.put(())
    assert publisher.put([stored(2)])
    assert not publisher.put([stored(3)])
    assert not publisher.put(())
    assert publisher.overflows == 1
    publisher.start()
    publisher.close()
    assert publisher.batches == 2, "what was taken is published before the end"


def test_a_publisher_without_block_names_logs_it(publish):
    def broken(changes):
        raise KeyError(changes)

    publisher = publish(events=broken)
    while publisher.put([1]):
        pass
    assert publisher.overflows == 1


def test_unusable_addresses_are_explained(publish):
    publisher = publish()
    for options, says in (
        (KvPublisherOptions("nowhere"), "'nowhere' cannot be bound"),
        (KvPublisherOptions(publisher.endpoint), "cannot be bound: Address"),
        (KvPublisherOptions(LOOPBACK, "tcp://nohost.invalid:1"), "replays endpoint"),
    ):
        with pytest.raises(ValueError, match=says):
            KvPublisher(options, list)
    with pytest.raises(ValueError, match="buffer_steps is 0"):
        KvPublisherOptions(LOOPBACK, buffer_steps=0)


def test_a_publisher_that_was_never_started_is_closed():
    KvPublisher(KvPublisherOptions(LOOPBACK, LOOPBACK), list).close()


def test_an_ended_publisher_accepts_nothing(publish):
    publisher = publish()
    publisher.close()
    assert not publisher.put([stored(1)])
    publisher.close()


# --- the engine -----------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
async def test_the_view_equals_the_trie_of_the_engine(llama, publish, late):
    """The view follows calls that run, are cancelled and evict each other; a reader may join late."""
    publisher = publish(events=PageNames().events, buffer_steps=5)
    loop, ends = asyncio.get_running_loop(), asyncio.Queue()
    thread = EngineThread(
        llama,
        Fcfs(),
        EngineOptions(kv_tokens=512, max_batch=4, token_budget=64),
        max_queue=64,
        on_events=lambda events: loop.call_soon_threadsafe(ends.put_nowait, events),
        page_changes=PageChanges(publisher.put),
    )
    rng = np.random.default_rng(4)
    trunks = rng.integers(3, 200, (3, 100))
    requests = []
    for number in range(40):
        tokens = np.concatenate([trunks[number % 3][: 10 * (number % 11)], rng.integers(3, 200, 9)])
        params = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
        salt = "s" if number % 4 == 0 else ""
        requests.append(
            SequenceRequest(f"s{number}", "c", tokens.astype(np.uint32), params, salt=salt)
        )
    with Following(publisher) as reader:
        thread.start()
        thread.submit(requests[:20])
        thread.submit(requests[20:])
        thread.cancel([f"s{number}" for number in range(0, 40, 9)])
        left = {request.sequence_id for request in requests} - {f"s{n}" for n in range(0, 40, 9)}
        while left:
            for event in await ends.get():
                if getattr(event, "finish_reason", None):
                    left.discard(event.sequence_id)
        thread.stop()
        trie = thread._engine.cache.trie
        cached = {
            int(HASHER.keys(np.array(tokens, dtype=np.uint32), node.salt)[-1])
            for node in trie.nodes()
            for tokens in [sum((each.tokens for each in reversed(list(node.path()))), ())]
        }
        assert len(cached) > 20
        if late:
            with Following(publisher) as second:
                await second.until(lambda: second.view.keys() == cached)
                assert second.stats.complete
        await reader.until(lambda: reader.view.keys() == cached)
        assert (reader.stats.complete, reader.stats.left_out) == (True, 0)
        assert any(type(report).__name__ == "WorkerEvicted" for report in reader.reports)
