"""Counters and histograms of calls and runs since the start of the server, for Prometheus.

Listens to control. A label is a model, an outcome, a reason or a kind of token, never a user; models
beyond ``MAX_MODELS`` and reasons beyond ``MAX_REASONS`` count as ``other``, so that the number of series
is bounded. Belongs to the event loop. Cost: O(1) per event, nothing per token of an answer.

Times are those of calls that clients wait for: background calls are counted, but not timed.

Weakness: the tokens of a call are counted at its end, so a long answer appears at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.listener import CallListener
from fairserve.platform.monitoring.activity_bucket import MAX_REASONS, OTHER_REASON
from fairserve.scheduling.events import CallOutcome, InteractionEnded

MAX_MODELS = 100
OTHER = "other"
WAIT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the buckets of waiting times."""
DURATION_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Histogram:
    """Counts of values by bucket, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the upper bounds with the number of values up to each, as Prometheus has them."""
        found, below = [], 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += count
            found.append((str(bound), float(below)))
        return found


class _ByModel(dict[str, Histogram]):
    """Histograms by model."""

    def __init__(self, bounds: Sequence[float]) -> None:
        super().__init__()
        self._bounds = bounds

    def __missing__(self, model: str) -> Histogram:
        found = self[model] = Histogram(self._bounds)
        return found


class CallMetrics(CallListener):
    """Counts what happens to calls and runs."""

    def __init__(self) -> None:
        self._models: set[str] = set()
        self._reasons: set[str] = set()
        self._accepted: Counter[str] = Counter()
        self._by_run_rule: Counter[str] = Counter()
        self._ended: Counter[tuple[str, str]] = Counter()
        self._rejected: Counter[str] = Counter()
        self._requeued: Counter[str] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._queue_s = _ByModel(WAIT_BOUNDS_S)
        self._ttft_s = _ByModel(WAIT_BOUNDS_S)
        self._duration_s = _ByModel(DURATION_BOUNDS_S)
        self._opened = self._closed = self._sharing = 0

    # --- events, see CallListener -----------------------------------------------------------------

    def call_accepted(self, call: CallState, now_s: float) -> None:
        """Count an accepted call."""
        self._accepted[self._model(call)] += 1
        self._by_run_rule[call.call.run_rule or "none"] += 1

    def call_requeued(self, call: CallState) -> None:
        """Count a failed attempt after which the call waits for another worker."""
        self._requeued[self._model(call)] += 1

    def call_started(self, call: CallState, now_s: float) -> None:
        """Count the wait of a call until its worker began."""
        if not call.call.background:
            self._queue_s[self._model(call)].observe(call.queue_s or 0.0)

    def call_ended(self, call: CallState, outcome: CallOutcome, now_s: float) -> None:
        """Count the outcome, the tokens and the times of a call."""
        model = self._model(call)
        self._ended[model, outcome] += 1
        self._sharing += not call.own_row
        self._tokens[model, "prompt"] += call.usage.prompt_tokens
        self._tokens[model, "cached"] += call.usage.cached_tokens
        self._tokens[model, "output"] += call.usage.output_tokens
        if call.call.background:
            return
        self._duration_s[model].observe(now_s - call.submitted_s)
        if call.ttft_s is not None:
            self._ttft_s[model].observe(call.ttft_s)

    def call_rejected(self, call: CallState, reason: str, now_s: float) -> None:
        """Count a rejected call by its reason."""
        if reason not in self._reasons:
            if len(self._reasons) >= MAX_REASONS:
                reason = OTHER_REASON
            self._reasons.add(reason)
        self._rejected[reason] += 1
        self._sharing += not call.own_row

    def run_opened(self, tenant: str) -> None:
        """Count a run that began or was reopened."""
        self._opened += 1

    def run_ended(self, run: InteractionEnded) -> None:
        """Count a run that ended."""
        self._closed += 1

    def _model(self, call: CallState) -> str:
        model = call.call.pool or OTHER
        if model not in self._models:
            if len(self._models) >= MAX_MODELS:
                return OTHER
            self._models.add(model)
        return model

    # --- what a scrape reads ----------------------------------------------------------------------

    def families(self) -> Iterator[Metric]:
        """Yield the metrics as they are now. O(series), on the event loop."""
        yield _counter("calls_accepted", "Calls that were queued.", ("model",), self._accepted)
        yield _counter(
            "calls_by_run_rule",
            "Accepted calls by the rule that named their run; none: no rule did.",
            ("rule",),
            self._by_run_rule,
        )
        yield _counter("calls_ended", "Calls by outcome.", ("model", "outcome"), self._ended)
        yield _counter("calls_rejected", "Calls that were not queued.", ("reason",), self._rejected)
        yield CounterMetricFamily(
            "fairserve_calls_sharing_rows",
            "Calls that used nothing and share rows: their tenants have too many of them.",
            value=self._sharing,
        )
        yield _counter(
            "calls_requeued",
            "Attempts that failed before the start of the call and were tried again.",
            ("model",),
            self._requeued,
        )
        yield _counter(
            "call_tokens",
            "Tokens of ended calls; cached ones are a part of the prompt.",
            ("model", "kind"),
            self._tokens,
        )
        yield _histogram(
            "call_queue_seconds", "Time from submission until a worker began.", self._queue_s
        )
        yield _histogram(
            "call_ttft_seconds",
            "Time from submission until the first output of a streamed call.",
            self._ttft_s,
        )
        yield _histogram(
            "call_duration_seconds", "Time from submission until the end.", self._duration_s
        )
        for name, text, value in (
            ("interactions_opened", "Interactions that began or were reopened.", self._opened),
            ("interactions_ended", "Interactions that ended.", self._closed),
        ):
            yield CounterMetricFamily(f"fairserve_{name}", text, value)


def _counter(
    name: str,
    text: str,
    labels: Sequence[str],
    values: Counter[str] | Counter[tuple[str, str]],
) -> Metric:
    family = CounterMetricFamily(f"fairserve_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else list(key), value)
    return family


def _histogram(name: str, text: str, values: _ByModel) -> Metric:
    family = HistogramMetricFamily(f"fairserve_{name}", text, labels=("model",))
    for model, each in values.items():
        family.add_metric([model], each.buckets(), each.total)
    return family
