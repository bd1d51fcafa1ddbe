"""The alarm rules over virtual time: calls of many apps at a first-come-first-served server."""

import heapq
import math
import random
from collections import Counter, deque
from itertools import chain, count

from virtual_cluster import make_call

from fairserve.interactions.call import TokenUsage
from fairserve.platform.background.alarms.open_alarms import OpenAlarms
from fairserve.platform.background.alarms.rules import (
    Rules,
    SeenModel,
    SeenServer,
    SeenWorker,
)
from fairserve.platform.background.alarms.watch import seen_clients
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.messages import Entitlements
from fairserve.platform.monitoring.activity import BUCKET_S, Activity
from fairserve.platform.monitoring.app_calls import AppCalls
from fairserve.scheduling.fairness.level_weights import EntitledShares

SERVICE_S = 0.2
"""Seconds of one slot for one call."""
TOKENS = 100


def equal_shares(clients):
    """Every client is entitled to the same."""
    shares = EntitledShares(dict.fromkeys(clients, (1.0, 1.0, 1.0)), lambda tenant: "user")
    return Entitlements(shares, {app: 1.0 for _, app, _ in clients})


class AlarmWorld:
    """Clients that call at random times, and a server of ``slots`` that serves in order of arrival.

    ``limits`` are the calls a minute of an app, in force from their setting on. The apps in ``failing``
    fail. ``workers`` share the slots of the model "m"; a lost one's calls wait for the others.
    ``more_slots`` are those of further models.
    """

    def __init__(self, slots=100, workers=2, seed=7, more_slots=()):
        self.now_s = 0.0
        self.random = random.Random(seed)
        self.slots, self.workers = slots, dict.fromkeys(range(workers), "ready")
        self.more_slots = dict(more_slots)
        self.overloaded = set()
        """Models that are overloaded."""
        self.limits, self.failing, self.blocked = {}, set(), set()
        self.limited_user = None
        """A user whose calls its own limit rejects."""
        self.activity = Activity(lambda owners: dict.fromkeys(owners, 1.0), lambda: self.now_s)
        self.calls = AppCalls()
        self.rules = Rules(self.calls)
        self.ids = count(1)
        self.alarms = OpenAlarms(lambda: f"al_{next(self.ids)}")
        self.history = []
        """All alarms in the order of their opening."""
        self._numbers = count()
        self._accepted = {}
        self._queues = {model: deque() for model in ("m", *self.more_slots)}
        self._running, self._arrivals, self._busy = [], [], Counter()
        self._rates, self._models = {}, {}
        self._sample_s = BUCKET_S

    # --- clients ----------------------------------------------------------------------------------

    def client(self, tenant, user, calls_per_s, app=None, model="m"):
        """Add a client of a model, or change its rate; 0 ends its calls."""
        owner = (tenant, app or f"app-{tenant}", user)
        known = owner in self._rates
        self._models[owner] = model
        self._rates[owner] = calls_per_s
        if calls_per_s and not known:
            self._next(owner)
        return owner

    def _next(self, owner):
        if self._rates[owner]:
            due_s = self.now_s + self.random.expovariate(self._rates[owner])
            heapq.heappush(self._arrivals, (due_s, next(self._numbers), owner))
        else:
            del self._rates[owner]

    def _arrive(self, owner):
        tenant, app, user = owner
        number = next(self._numbers)
        call = make_call(f"c{number}", user=user, tenant=tenant, app=app, tokens=(1,))
        call.pool = self._models[owner]
        live = CallState(call, f"r{number}", "", self.now_s, self.now_s)
        reason = self._rejection(owner)
        if reason:
            for each in (self.activity, self.calls):
                each.call_rejected(live, reason, self.now_s)
            return
        for each in (self.activity, self.calls):
            each.call_accepted(live, self.now_s)
        self._queues[call.pool].append(live)

    def _rejection(self, owner):
        if owner in self.blocked:
            return "user_blocked"
        if owner == self.limited_user:
            return "contract_rpm"
        times = self._accepted.setdefault(owner[1], deque())
        while times and times[0] <= self.now_s - 60:
            times.popleft()
        if len(times) >= self.limits.get(owner[1], math.inf):
            return "contract_rpm"
        times.append(self.now_s)
        return ""

    # --- server -----------------------------------------------------------------------------------

    def free(self, model):
        """Return the free slots of a model."""
        up = sum(state == "ready" for state in self.workers.values())
        slots = self.more_slots.get(model, self.slots * up // len(self.workers))
        return slots - self._busy[model]

    def _serve(self):
        for model, queue in self._queues.items():
            for _ in range(min(len(queue), self.free(model))):
                self._start(queue.popleft())

    def _start(self, live):
        live.worker_id, live.queue_s, live.started = "w", self.now_s - live.submitted_s, True
        self.activity.call_granted(live)
        for each in (self.activity, self.calls):
            each.call_started(live, self.now_s)
        self._busy[live.call.pool] += 1
        heapq.heappush(self._running, (self.now_s + SERVICE_S, next(self._numbers), live))

    def _end(self, live):
        self._busy[live.call.pool] -= 1
        live.usage = TokenUsage(TOKENS, 0, 0, 0)
        outcome = "failed" if live.call.app in self.failing else "completed"
        for each in (self.activity, self.calls):
            each.call_ended(live, outcome, self.now_s)

    # --- time -------------------------------------------------------------------------------------

    def run(self, seconds):
        """Pass virtual time; return the alarms that opened."""
        until_s, before = self.now_s + seconds, len(self.history)
        while True:
            due = [self._sample_s]
            due += [each[0][0] for each in (self._arrivals, self._running) if each]
            if min(due) > until_s:
                self.now_s = until_s
                return self.history[before:]
            self.now_s = min(due)
            if self._running and self._running[0][0] <= self.now_s:
                self._end(heapq.heappop(self._running)[2])
            elif self._arrivals and self._arrivals[0][0] <= self.now_s:
                owner = heapq.heappop(self._arrivals)[2]
                if self._rates.get(owner):
                    self._arrive(owner)
                self._next(owner)
            else:
                self._sample()
            self._serve()

    def _sample(self):
        self._sample_s += BUCKET_S
        self.activity.settle(self.now_s)
        victims = [*chain.from_iterable(self.rules.victims(self.alarms.by_key(), self.now_s))]
        clients = seen_clients(self.activity.demand(), equal_shares)
        up = any(state == "ready" for state in self.workers.values())
        drained = "draining" in self.workers.values()
        server = SeenServer(
            models=[
                SeenModel(model, up or model != "m", drained, model in self.overloaded)
                for model in self._queues
            ],
            workers=[
                SeenWorker(f"w{number}", "m", state, "") for number, state in self.workers.items()
            ],
        )
        found = self.rules.find(
            victims, server, clients, self.alarms, self.blocked.__contains__, self.now_s
        )
        known = set(self.alarms)
        self.alarms.update(found, self.now_s)
        self.history += [alarm for alarm in self.alarms if alarm not in known]

    @property
    def open(self):
        """The kinds of the alarms that are not resolved."""
        return [alarm.key.kind for alarm in self.alarms]
