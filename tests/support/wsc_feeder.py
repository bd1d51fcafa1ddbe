"""A WSC feeder over the assumed caches of two workers: calls are queued, served and charged."""

from virtual_cluster import make_call, prompt

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.events import AppChanged
from fairserve.scheduling.feeders.wsc import WscFeeder
from fairserve.scheduling.feeders.wsc_options import WscOptions
from fairserve.scheduling.locality.locality import Locality
from fairserve.throttling.base import Limits

TOKENS = prompt((1, 100))


WORKERS = ["w0", "w1"]
LONG = prompt((3, 96))
"""Prompt of 96 tokens that a test may put into a worker's cache; the prompts of calls are longer."""


def made(known, options=WscOptions()):
    """Return a feeder with two workers, both with empty caches."""
    locality = Locality(seed=1)
    for worker in WORKERS:
        locality.add_worker(worker, 100_000)
    return WscFeeder(known, locality, options)


def queue(feeder, new):
    """Queue a call as the dispatcher does, its keys first."""
    feeder._locality.register(new)
    feeder.add(new)


def cache(feeder, tokens, worker="w0"):
    """Put the tokens into the worker's cache."""
    seed = call("seed", "nobody", tokens=tokens)
    feeder._locality.register(seed)
    feeder._locality.placed(seed, worker)
    feeder._locality.forget("seed")


def directory(**apps):
    known = Directory()
    for app, (input_tokens, output_tokens) in apps.items():
        profile = AppProfile((StageProfile(input_tokens, 0, output_tokens),))
        known.take(AppChanged(app, profile, Limits()))
    return known


def call(call_id, user, *, app="app", output=10, run=None, tokens=TOKENS, left=0.0, calls=1.0):
    """Return a call; ``left`` output tokens and ``calls`` calls to the end of its run."""
    new = make_call(call_id, user=user, app=app, tokens=tokens, output=output, run=run)
    new.remaining_tokens, new.remaining_calls = left, calls
    new.stage, new.expected_output_tokens = 1, output
    return new


def serve(feeder, workers=WORKERS, cached=0):
    """Take the next call, run it to its end immediately, and return it."""
    chosen = feeder.peek(workers)
    feeder.dispatch(chosen.call_id, cached)
    feeder.finish(chosen.call_id, used(chosen, cached))
    if chosen.single:
        feeder.interaction_ended(chosen.interaction_id)
    return chosen


def used(chosen, cached=0):
    return TokenUsage(chosen.input_tokens, 0, cached, chosen.max_output_tokens)


def charge(feeder, user, cost):
    feeder._counters.charge(feeder._counters.client(("t", user)), cost)


def fill(feeder, user, count, **more):
    for number in range(count):
        queue(feeder, call(f"{user}-{number}", user, **more))
