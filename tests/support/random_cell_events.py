"""Random events for a cell: the messages of calls, the dispatcher's events, and changed settings.

The source follows the outputs of one cell, so that most events are valid. Other cells that get copies of
the same events must answer with the same outputs.
"""

from copy import copy

from random_events import RandomEvents

from fairserve.interactions.call import TokenUsage
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.control import cell_events as ce
from fairserve.platform.control.messages import Cancel, Progress, Release, Submit
from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.scheduling import events as ev
from fairserve.scheduling.errors import UnknownWorkerError
from fairserve.throttling.quotas.price import TokenPrice

SYSTEMS = (
    ("fairserve", {}),
    ("fairserve", {"resident_share": 0.3, "hold_s": 25.0}),
    ("fairserve", {"newcomers": "shared", "newcomer_slices": 2.0}),
    ("vtc-weighted", {}),
    ("rpm-20", {"throttle.limit": 3}),
)


class RandomCellEvents(RandomEvents):
    """A source of events for a cell."""

    def __init__(self, rng, **more):
        super().__init__(rng, **more)
        self.record_ids = {}
        """Ids of the live calls' rows."""

    def next(self):
        """Advance the time and return an event."""
        event = super().next()
        rng = self.rng
        match event:
            case ev.CallArrived():
                return self._submitted(event.call)
            case ev.CallStarted():
                usage = TokenUsage(self.dispatched[event.call_id].input_tokens, 0, 0, 0)
                return Progress(event.call_id, True, usage, event.cached_tokens is not None)
            case ev.TokensDecoded():
                if not event.totals:
                    return ce.DecodedTokensDue()
                call_id, tokens = event.totals[0]
                usage = TokenUsage(self.dispatched[call_id].input_tokens, 0, 0, tokens)
                return Progress(call_id, True, usage)
            case ev.CallEnded():
                return Release(
                    event.call_id,
                    event.outcome,
                    rng.choice([event.usage, event.usage, TokenUsage()]),
                    rng.choice([None, 0.5]),
                    continuation_keys=event.continuation_keys,
                    requested_tools=event.requested_tools,
                )
            case ev.CallReturned():
                usage = TokenUsage()
                return Release(event.call_id, "failed", usage, retry_on_another_worker=True)
            case ev.CancelRequested():
                return rng.choice([Cancel(event.call_id), ce.NotStored(event.call_id)])
            case ev.Tick():
                return self._changed() if rng.random() < 0.2 else event
        return event

    def _submitted(self, call):
        self.queued.pop(call.call_id)
        fingerprint = self.rng.choice(["", "same", "other"])
        retry = bool(fingerprint) and self.rng.random() < 0.3
        return Submit(call, f"row-{call.call_id}", fingerprint, retry)

    def _changed(self):
        rng = self.rng
        price = TokenPrice(rng.randint(1, 9), 1, 3, f"p{rng.randint(1, 9)}", 0.5, 2.5, 4)
        return rng.choice(
            [
                ce.SystemChanged(*rng.choice(SYSTEMS)),
                ce.PricesChanged(PriceBook([("*", 0.0, price), ("m", self.now_s, price)])),
                ce.ClockSet(rng.choice([1_000_000.0, 1_000_000.3, 999_000.0])),
                ce.DecodedTokensDue(),
            ]
        )

    def took(self, outputs):
        """Follow the outputs of a cell."""
        for output in outputs:
            if not isinstance(output, ce.CallChange):
                continue
            call = output.call.call
            match output.step:
                case "accepted" | "requeued":
                    self.dispatched.pop(call.call_id, None)
                    self.queued[call.call_id] = call
                case "granted":
                    self.dispatched[call.call_id] = self.queued.pop(call.call_id)
                case "ended" | "dropped":
                    self.queued.pop(call.call_id, None)
                    self.dispatched.pop(call.call_id, None)


def outputs_of(cell, event, now_s):
    """Return the outputs of a cell for an event, and the kind of its error."""
    try:
        return cell.apply(event, now_s), None
    except (FairServeError, UnknownWorkerError) as error:
        return cell.outputs, type(error)


def plain(output):
    """Return an output in a form that can be compared with that of another cell."""
    match output:
        case ce.CallChange():
            return (output.call.record_id, *output[1:])
        case ce.CallAnswer(record_id, FairServeError() as error):
            return record_id, type(error), str(error), error.code, error.headers
        case ce.JournalRow():
            return (output.kind, output.key, copy(output.data))
    return tuple(output) if isinstance(output, tuple) else output
