"""Benefit and cost of KV events: ``python benchmarks/scripts/kv_events.py [--rounds N]``.

*Foreseen*: conversations through a real server with two real workers whose caches are too small for
them. For every call the cached tokens predicted by the router when it chose the worker are compared
with those found by the worker, alternately with KV events and without.

*Costs*: on one thread, with nothing else running: the engine's part per step, the publisher's, the
reader's and the router's per batch, and memory per block.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
import tracemalloc
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import aiohttp
import numpy as np
import uvicorn
import zmq

from fairserve.engine.kv_events import dialect
from fairserve.engine.kv_events.dialect import AllBlocksCleared, KvBatch
from fairserve.engine.kv_events.publisher import KvPublisher, KvPublisherOptions
from fairserve.engine.kv_events.subscriber import KvSubscriber
from fairserve.engine.kv_events.view import KvView
from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME
from fairserve.engine.torch.engine import Engine, EngineOptions
from fairserve.engine.torch.model_loader import load_model
from fairserve.engine.torch.page_changes import PageChanges, PageNames
from fairserve.engine.torch.prefix_trie import PrefixTrie
from fairserve.engine.torch.sampling_params import SamplingParams
from fairserve.engine.torch.sequence import SequenceRequest
from fairserve.engine.wire.base import KvEndpoints
from fairserve.platform.server import wiring
from fairserve.platform.server.database import prepare_database
from fairserve.platform.server.lifecycle import Platform, build_app
from fairserve.platform.server.settings import Settings
from fairserve.scheduling import events as ev
from fairserve.scheduling.local.fcfs import Fcfs
from fairserve.scheduling.locality.block_keys import BlockHasher
from fairserve.scheduling.locality.locality import Locality

ADMIN_KEY = "sk-benchmark-" + "0" * 40
CONVERSATIONS, TURNS, AT_ONCE = 32, 6, 6
PAGES_A_CALL, PAGE = 32, 16


def words(rng: random.Random, characters: int) -> str:
    """Return some text of that length."""
    return "".join(rng.choice("abcdefghij ") for _ in range(characters))


# --- predicted hits -------------------------------------------------------------------------------


async def foreseen(*, events: bool, kv_tokens: int, seed: int) -> dict[str, float]:
    """Run conversations in random order once; each turn includes all previous ones."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            data_dir=Path(folder),
            workers=2,
            worker_kv_tokens=kv_tokens,
            admin_key=ADMIN_KEY,
            log_level="error",
        )
        with ExitStack() as stack:
            if not events:  # the server without its subscriptions
                stack.enter_context(mock.patch.object(wiring, "KvEventBridge", return_value=None))
            platform = Platform(settings)
        prepare_database(settings.db, platform.engine)
        config = uvicorn.Config(build_app(settings, platform), port=0, log_level="error")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        await until_ready(server, platform)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        seen = watch(platform)
        began_s = time.monotonic()
        async with aiohttp.ClientSession(url) as http:
            await talk(http, random.Random(seed))  # noqa: S311  no secret
        took_s = time.monotonic() - began_s
        server.should_exit = True
        await serving
    off = [reported - believed for believed, reported, _ in seen]
    prompts = sum(prompt for _, _, prompt in seen)
    return {
        "calls": len(seen),
        "exact": sum(not each for each in off) / len(off),
        "too much": sum(each < 0 for each in off) / len(off),
        "too little": sum(each > 0 for each in off) / len(off),
        "tokens off, mean": statistics.fmean(abs(each) for each in off),
        "cached of prompt": sum(reported for _, reported, _ in seen) / prompts,
        "seconds": took_s,
    }


async def until_ready(server: uvicorn.Server, platform: Platform) -> None:
    """Wait for the server and both workers."""
    while not (  # noqa: ASYNC110  no event reports it
        server.started and len(platform.pool) == 2 and platform.completions.models.ready()
    ):
        await asyncio.sleep(0.05)


def watch(platform: Platform) -> list[tuple[int, int, int]]:
    """Return for each started call its predicted and reported cached tokens, and prompt tokens."""
    dispatcher, seen = platform.control.cell.dispatcher, []
    handle = dispatcher.handle

    def watching(event, now_s):
        if isinstance(event, ev.CallStarted) and event.cached_tokens is not None:
            live = dispatcher._live[event.call_id]
            believed = live.cached_tokens // PAGE * PAGE
            seen.append((believed, event.cached_tokens, live.call.prompt_tokens))
        return handle(event, now_s)

    dispatcher.handle = watching
    return seen


async def talk(http: aiohttp.ClientSession, rng: random.Random) -> None:
    """Send all conversations, a few turns at once."""

    async def post(path, key, body, **headers):
        headers["Authorization"] = f"Bearer {key}"
        async with http.post(path, json=body, headers=headers) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json()

    tenant = await post("/admin/tenants", ADMIN_KEY, {"name": "t"})
    profile = {"stages": [{"input_tokens": 300, "output_tokens": 40}], "calls_per_interaction": 6}
    app = {"name": "a", "profile": profile}
    key = (await post("/v1/apps", tenant["api_key"], app))["api_key"]
    systems = [words(rng, 250) for _ in range(4)]
    talks = [
        [{"role": "system", "content": systems[number % len(systems)]}]
        for number in range(CONVERSATIONS)
    ]
    turns = [number for number in range(CONVERSATIONS) for _ in range(TURNS)]
    rng.shuffle(turns)
    busy, free = set(), asyncio.Semaphore(AT_ONCE)

    async def turn(number: int, text: str) -> None:
        talks[number].append({"role": "user", "content": text})
        body = {"model": "fairserve-tiny-random", "messages": talks[number], "max_tokens": 40}
        headers = {"X-Interaction-Id": f"r{number}"}
        answer = await post(
            "/v1/chat/completions", key, body | {"user": f"u{number % 5}"}, **headers
        )
        talks[number].append(answer["choices"][0]["message"])
        busy.discard(number)
        free.release()

    tasks = []
    while turns:
        await free.acquire()
        number = next(each for each in turns if each not in busy)
        turns.remove(number)
        busy.add(number)
        tasks.append(asyncio.create_task(turn(number, words(rng, 60))))
    await asyncio.gather(*tasks)


# --- costs ----------------------------------------------------------------------------------------


def prompts(count: int) -> list[np.ndarray]:
    """Return this many prompts that share nothing."""
    rng = np.random.default_rng(1)
    return [rng.integers(0, 50_000, PAGES_A_CALL * PAGE).astype(np.uint32) for _ in range(count)]


def steps(trie: PrefixTrie, capacity_pages: int, flush) -> float:
    """Store one prompt per step, evicting as many pages; return the microseconds of all steps."""
    calls = [
        [tuple(tokens[at : at + PAGE].tolist()) for at in range(0, len(tokens), PAGE)]
        for tokens in prompts(600)
    ]
    began_ns = time.perf_counter_ns()
    for pages in calls:
        while trie.cached_pages + PAGES_A_CALL > capacity_pages:
            trie.evict_one()
        node = trie.match("", pages)
        for page in pages:
            node = trie.insert(node, page, 0)
        flush()
    return (time.perf_counter_ns() - began_ns) / 1000 / len(calls)


def costs() -> dict[str, float]:
    """Return microseconds for a step that stores and evicts 32 pages, and bytes per block."""
    capacity = 4096
    plain = min(steps(PrefixTrie(), capacity, lambda: None) for _ in range(5))
    with_events = []
    published: list[list] = []
    for _ in range(5):
        trie, published = PrefixTrie(), []
        changes = PageChanges(
            lambda batch, published=published: published.append(list(batch)) or True
        )
        changes.follow(trie)
        with_events.append(steps(trie, capacity, changes.flush))
    names = PageNames()
    began_ns = time.perf_counter_ns()
    batches = [dialect.encode(KvBatch(time.time(), names.events(each))) for each in published]
    publish = (time.perf_counter_ns() - began_ns) / 1000 / len(published)
    hasher = BlockHasher(1, PAGE)
    hasher.keys(prompts(1)[0])
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    view = KvView("w", hasher, capacity * PAGE)
    for batch in batches:
        view.apply(dialect.decode(batch).events)
    per_block = (tracemalloc.get_traced_memory()[0] - before) / len(view)
    tracemalloc.stop()
    view = KvView("w", hasher, capacity * PAGE)
    began_ns = time.perf_counter_ns()
    reports = [view.apply(dialect.decode(batch).events) for batch in batches]
    read = (time.perf_counter_ns() - began_ns) / 1000 / len(batches)
    locality = Locality(1)
    locality.add_worker("w", capacity * PAGE)
    locality.reports.take(ev.WorkerCacheReset("w", complete=True))
    began_ns = time.perf_counter_ns()
    for each in reports:
        for report in each:
            locality.reports.take(report)
    route = (time.perf_counter_ns() - began_ns) / 1000 / len(batches)
    without, with_events = engine_steps(rounds=25)
    return {
        "a forward pass of 512 tokens, us": without,
        "the same while its events are published": with_events,
        "trie alone, us a step": plain,
        "engine's thread, us more a step": min(with_events) - plain,
        "publisher's thread, us a batch": publish,
        "bytes of a batch": statistics.fmean(map(len, batches[200:])),
        "reader, us a batch": read,
        "router, us a batch": route,
        "wire, us a batch in the reader's loop": asyncio.run(wire(batches)),
        "view, bytes a block": per_block,
    }


def engine_steps(rounds: int) -> tuple[float, float]:
    """Return median microseconds of steps that compute 512 tokens, without and with events."""
    loaded = load_model(BUILTIN_MODEL_NAME, device="cpu")
    rng = np.random.default_rng(2)
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * rounds):
        events = number % 2 == 1
        engine = Engine(loaded, Fcfs(), EngineOptions(kv_tokens=8192), lambda event: None)
        publisher = KvPublisher(KvPublisherOptions("tcp://127.0.0.1:0"), PageNames().events)
        publisher.start()
        changes = PageChanges(publisher.put)
        if events:
            changes.follow(engine.cache.trie)
        for call in range(40):
            tokens = rng.integers(3, 200, 512).astype(np.uint32)
            params = SamplingParams(max_tokens=1, temperature=0)
            engine.add(SequenceRequest(f"s{call}", "c", tokens, params))
            began_ns = time.perf_counter_ns()
            engine.step()
            changes.flush()
            took[events].append((time.perf_counter_ns() - began_ns) / 1000)
        publisher.close()
    return statistics.median(took[False]), statistics.median(took[True])


async def wire(batches: list[bytes]) -> float:
    """Return the microseconds of CPU of the reader's thread for receiving over TCP only."""
    context = zmq.Context()
    publisher = KvPublisher(KvPublisherOptions("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"), list)
    publisher.start()
    view = KvView("w", BlockHasher(1, PAGE), 1)
    endpoints = KvEndpoints(publisher.endpoint, publisher.replay_endpoint)
    subscriber = KvSubscriber(context, endpoints, view, lambda report: None)
    subscriber.start()
    while subscriber.stats.complete is None:  # noqa: ASYNC110  no event reports it
        await asyncio.sleep(0.01)
    used_ns = 0
    for number in range(len(batches)):
        publisher.put([AllBlocksCleared()])
        while subscriber.stats.last_sequence != number:
            time.sleep(0.001)  # noqa: ASYNC251  the loop is blocked, so that all its work is measured
            began_ns = time.thread_time_ns()
            await asyncio.sleep(0)
            used_ns += time.thread_time_ns() - began_ns
    subscriber.close()
    publisher.close()
    context.destroy(linger=0)
    return used_ns / 1000 / len(batches)


def main() -> None:
    """Measure, and print medians with their ranges."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv-tokens", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--only-costs", action="store_true")
    options = parser.parse_args()
    for name, value in costs().items():
        print(f"{name:46} {value:9.1f}")
    if options.only_costs:
        return
    for kv_tokens in options.kv_tokens:
        rounds: dict[bool, list] = {True: [], False: []}
        for seed in range(options.rounds):
            for events in (False, True):
                result = asyncio.run(foreseen(events=events, kv_tokens=kv_tokens, seed=seed))
                rounds[events].append(result)
        for events, results in rounds.items():
            print(f"{kv_tokens} tokens a worker, {'with' if events else 'without'} KV events:")
            for name in results[0]:
                values = [result[name] for result in results]
                spread = f"({min(values):.3f} to {max(values):.3f})"
                print(f"  {name:18} {statistics.median(values):9.3f} {spread}")


if __name__ == "__main__":
    main()
