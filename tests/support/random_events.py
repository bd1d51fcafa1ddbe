"""Random events for a dispatcher: every kind of event, with times that often meet the edges of windows.

The source of events follows the commands of one dispatcher, so that most events are valid. Other
dispatchers that get the same events must answer with the same commands.
"""

from fairserve.interactions.call import Call, TokenUsage, call_from_plain, call_to_plain
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.run_rules import ANY_ANSWER, Clue
from fairserve.scheduling import events as ev
from fairserve.scheduling.errors import UnknownCallError, UnknownWorkerError
from fairserve.throttling.base import Limits
from fairserve.throttling.quotas.price import TokenPrice
from fairserve.throttling.quotas.quota import Quota

GAPS_S = (0.0, 0.0, 0.1, 0.7, 1.0, 2.0, 20.0, 30.0, 59.3)
"""Times between events: several add up to windows of 60 s, or to the end of a fixed second."""
MODELS = ("m", "n")
KINDS = ("", "gpu", "vision")


class RandomEvents:
    """A source of events. ``now_s`` is the time of the last one."""

    def __init__(self, rng, *, users=4, models=MODELS, refusals=True):
        self.rng, self.users, self.models = rng, users, models
        self.refusals = refusals
        """True if limits and quotas may reject calls."""
        self.now_s = rng.choice([0.0, rng.uniform(0, 1000)])
        self.calls = 0
        self.queued, self.dispatched = {}, {}
        self.runs, self.workers = [], []

    def begin(self):
        """Return the events that set up apps and workers."""
        yield from (self._app(app, 5) for app in ("a", "b"))
        for number in range(4):
            yield self._join(number)

    def next(self):
        """Advance the time and return an event."""
        self.now_s += self.rng.choice([*GAPS_S, self.rng.uniform(0, 5)])
        kinds = [self._arrive] * 8 + [self._end] * 5 + [self._start, self._decode] * 3
        kinds += [self._tick, self._tick, self._return, self._cancel, self._open, self._close]
        kinds += [self._worker, self._setting, self._cached, self._move]
        return self.rng.choice(kinds)()

    def took(self, commands):
        """Follow the commands of a dispatcher."""
        for command in commands:
            if isinstance(command, ev.Admit):
                self.dispatched[command.call_id] = self.queued.pop(command.call_id)
            elif not isinstance(command, ev.CancelCall):
                self.queued.pop(getattr(command, "call_id", None), None)
            elif command.worker_id is None:
                self.queued.pop(command.call_id)

    # --- calls ------------------------------------------------------------------------------------

    def _arrive(self):
        rng = self.rng
        self.calls += 1
        run = rng.choice([None, None, f"R{rng.randint(0, 5)}"])
        first = rng.randint(1, 3) * 1000
        prefix = list(range(first, first + rng.choice([0, 1, 3, 6])))
        own = [self.calls * 100_000 + n for n in range(rng.randint(0, 4))]
        keys = prefix + own
        call = Call(
            f"c{self.calls}",
            rng.choice("tu"),
            rng.choice("ab"),
            f"u{rng.randint(1, self.users)}",
            run or f"run-{self.calls}",
            "m",
            16 * len(keys) + rng.randint(1, 15),
            0,
            rng.choice([1, 20, 200]),
            block_keys=keys,
            pool=rng.choice(self.models),
            single=run is None,
            kinds=frozenset(rng.choice([(), (), (), ("vision",), ("gpu", "vision")])),
            workers=frozenset(rng.choice([(), (), (), ("w0", "w2")])),
            background=rng.random() < 0.15,
            priority=rng.random() < 0.15,
            streamed=rng.random() < 0.8,
            history=(rng.randint(1, 5),),
            answer_scopes=(ANY_ANSWER,),
            clues=rng.choice([(), (Clue("conversation", name=rng.randint(1, 3)),)]),
            final=rng.random() < 0.05,
            remaining_tokens=rng.choice([0.0, 5.0, 50.0]),
        )
        self.queued[call.call_id] = call
        price = TokenPrice(2, 1, 3, "p")
        return ev.CallArrived(call, at=1_000_000.0 + self.now_s, price=price)

    def _running(self):
        return self.rng.choice(list(self.dispatched)) if self.dispatched else None

    def _start(self):
        call_id = self._running()
        return (
            ev.CallStarted(call_id, self.rng.choice([None, 0, 16])) if call_id else self._arrive()
        )

    def _decode(self):
        names = sorted(self.rng.sample(list(self.dispatched), min(3, len(self.dispatched))))
        return ev.TokensDecoded(tuple((name, self.rng.randint(1, 20)) for name in names))

    def _end(self):
        call_id = self._running()
        if call_id is None:
            return self._arrive()
        call = self.dispatched.pop(call_id)
        output = self.rng.randint(0, call.max_output_tokens)
        return ev.CallEnded(
            call_id,
            self.rng.choice(["completed"] * 4 + ["cancelled", "failed"]),
            TokenUsage(call.input_tokens, 0, self.rng.choice([0, 16]), output),
            continuation_keys=(self.rng.randint(1, 5),),
            requested_tools=self.rng.random() < 0.2,
            charged=self.rng.random() < 0.9,
        )

    def _return(self):
        call_id = self._running()
        if call_id is None:
            return self._arrive()
        self.queued[call_id] = self.dispatched.pop(call_id)
        return ev.CallReturned(call_id)

    def _move(self):
        call_id = self._running()
        if call_id is None or not self.workers:
            return self._tick()
        return ev.CallMoved(call_id, self.rng.choice(self.workers))

    def _cancel(self):
        live = [*self.queued, *self.dispatched]
        return ev.CancelRequested(self.rng.choice(live)) if live else self._arrive()

    # --- runs and workers -------------------------------------------------------------------------

    def _open(self):
        run = f"R{self.rng.randint(0, 5)}"
        return ev.InteractionOpened(run, self.rng.choice("tu"), "a", f"u{self.rng.randint(1, 2)}")

    def _close(self):
        rng = self.rng
        run = f"R{rng.randint(0, 5)}"
        return ev.InteractionClosed(run, cancel=rng.random() < 0.5, failed=rng.random() < 0.2)

    def _join(self, number):
        name = f"w{number}"
        self.workers.append(name)
        kind, model = KINDS[number % 3], self.models[number % len(self.models)]
        return ev.WorkerJoined(name, self.rng.choice([640, 2_000]), model=model, kind=kind)

    def _worker(self):
        rng = self.rng
        if len(self.workers) < 3:
            return self._join(rng.choice([n for n in range(6) if f"w{n}" not in self.workers]))
        name = rng.choice(self.workers)
        drains = [ev.WorkerDraining(name), ev.WorkerUndrained(name)]
        if rng.random() < 0.2:
            self.workers.remove(name)
            return ev.WorkerLost(name)
        return rng.choice([*drains, ev.WorkerReported(name, rng.choice([0, 100]))])

    def _cached(self):
        rng = self.rng
        if not self.workers:
            return self._tick()
        name, prefix = rng.choice(self.workers), rng.randint(1, 3) * 1000
        keys = tuple(prefix + n for n in range(rng.randint(1, 6)))
        return rng.choice(
            [
                ev.WorkerCacheReset(name, rng.random() < 0.7),
                ev.WorkerCached(name, None, keys),
                ev.WorkerEvicted(name, keys[-1:]),
            ]
        )

    # --- settings and time ------------------------------------------------------------------------

    def _tick(self):
        return ev.Tick()

    def _app(self, app, output):
        limits = Limits(3, 8, 2) if self.refusals else Limits()
        profile = AppProfile(
            (StageProfile(60, 0, output),),
            calls_per_interaction=self.rng.choice([1, 4]),
            idle_timeout_s=self.rng.choice([1.0, 30.0, 120.0]),
        )
        weights = self.rng.choice([1.0, 2.0]), self.rng.choice([None, 3.0])
        return ev.AppChanged(app, profile, limits, *weights)

    def _setting(self):
        rng = self.rng
        quota = Quota(rpm_limit=6, tpm_limit=3000, max_budget=10_000, budget_duration="1d")
        if not self.refusals:
            quota = Quota(max_budget=10**15, budget_duration="1d")
        user = f"u{rng.randint(1, self.users)}"
        return rng.choice(
            [
                self._app(rng.choice("ab"), rng.choice([5, 100])),
                ev.TenantChanged(rng.choice("tu"), rng.choice([1.0, 3.0]), None),
                ev.TenantChanged("t", 1.0, rng.choice([None, "tenant > app > user"])),
                ev.UserChanged(
                    "t",
                    user,
                    rng.choice([1.0, 2.0]),
                    rng.choice([None, 5]),
                    priority_weight=rng.choice([None, 3.0]),
                ),
                ev.UserStopped("t", user, rng.random() < 0.3),
                ev.ContractChanged("tenant", "t", quota=rng.choice([quota, Quota()])),
                ev.ContractChanged("app_user", "t", "a", quota=quota),
                ev.BudgetSpent(("t", "a", user), 100, 1_000_000.0 + self.now_s),
            ]
        )


def outcome(dispatcher, event, now_s):
    """Return the commands of a dispatcher for its own copy of an event, or the kind of its error."""
    if isinstance(event, ev.CallArrived):
        call = call_from_plain(call_to_plain(event.call))
        event = ev.CallArrived(call, event.at, event.price)
    try:
        return dispatcher.handle(event, now_s)
    except (UnknownCallError, UnknownWorkerError, ValueError) as error:
        return type(error)
