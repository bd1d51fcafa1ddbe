"""Service of each client over one run, as plotted in the VTC paper.

Times are centres of windows, an eighth of a window apart; the windows are those of the job, default
60 s. Accumulated service is exact at these times and interpolated linearly between them.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt

from fairserve.benchmarks.simulate.curves import Curves
from fairserve.benchmarks.simulate.job import SimulationOutcome

Floats = npt.NDArray[np.float64]


class ServiceHistory:
    """The clients of one run, by the last part of their path, until a time."""

    @classmethod
    def of(cls, outcome: SimulationOutcome, until_s: float) -> ServiceHistory:
        """Return the history of a job that was run with curves."""
        assert outcome.curves is not None, f"{outcome.name} has no curves"
        summary = outcome.summary
        calls = sum(client["calls"] for client in summary["per_client"].values())
        return cls(
            outcome.curves,
            until_s,
            tokens_per_s=summary["throughput_tokens_per_s"]["total"],
            refused_share=summary["refused_calls"] / calls,
        )

    def __init__(
        self,
        curves: Curves,
        until_s: float,
        *,
        tokens_per_s: float,
        refused_share: float,
    ) -> None:
        self.tokens_per_s = tokens_per_s
        """Throughput of the whole run."""
        self.refused_share = refused_share
        """Rejected calls as a fraction of all calls."""
        times = np.asarray(curves.centres_s)
        inside = times <= until_s + 1e-6
        self.times_s: Floats = times[inside]
        self.end_s = min(until_s, float(times[-1]))
        """Time until which service is known."""
        self._all_times = np.append(0.0, times)
        self._all_accumulated = {
            _short(client): np.append(0.0, values) for client, values in curves.accumulated.items()
        }

        def cut(
            values: dict[str, tuple[float, ...]] | dict[str, tuple[float | None, ...]],
        ) -> dict[str, Floats]:
            return {
                _short(client): np.asarray(values[client], dtype=np.float64)[inside]
                for client in sorted(values)
            }

        self._backlogged = {
            _short(client): np.asarray(values, dtype=np.bool_)[inside]
            for client, values in curves.backlogged.items()
        }
        self.accumulated = cut(curves.accumulated)
        """Service from the start."""
        self.service_per_s = cut(curves.service_per_s)
        self.response_s = cut(curves.response_s)
        """Mean time to first token of the arrivals in a window; NaN without arrivals."""

    @property
    def difference(self) -> Floats:
        """Return the largest difference between two clients in accumulated service, at each time."""
        all_clients = np.asarray(list(self.accumulated.values()))
        spread: Floats = all_clients.max(axis=0) - all_clients.min(axis=0)
        return spread

    @property
    def largest_difference(self) -> float:
        """Return the largest difference over all times."""
        return float(self.difference.max())

    @property
    def interval_difference(self) -> float:
        """Return the largest service difference of two clients over an interval of common backlog.

        This is ``|Wf(t1, t2) - Wg(t1, t2)|`` with calls of both waiting from t1 to t2; 0 if there
        is none.
        """
        largest = 0.0
        for f, g in combinations(self.accumulated, 2):
            difference = self.accumulated[f] - self.accumulated[g]
            low = high = float(difference[0])
            both = self._backlogged[f] & self._backlogged[g]
            for now, backlogged in zip(difference.tolist(), both.tolist(), strict=True):
                low, high = (min(low, now), max(high, now)) if backlogged else (now, now)
                largest = max(largest, high - low)
        return largest

    @property
    def growth_per_min(self) -> float:
        """Return the slope of the difference's linear regression; NaN for two times."""
        if len(self.times_s) < 3:
            return float("nan")
        return 60.0 * float(np.polyfit(self.times_s, self.difference, 1)[0])

    def served_per_s(self, client: str, begin_s: float, end_s: float) -> float:
        """Return the service of a client per second between two times."""
        accumulated = self._all_accumulated[client]
        begin, end = np.interp([begin_s, end_s], self._all_times, accumulated)
        return float(end - begin) / (end_s - begin_s)

    def total_per_s(self, begin_s: float, end_s: float) -> float:
        """Return the service of all clients per second between two times."""
        return sum(self.served_per_s(client, begin_s, end_s) for client in self.accumulated)

    def mean_response_s(self, client: str, begin_s: float = 0.0, end_s: float = np.inf) -> float:
        """Return the mean over windows with centres between two times; NaN if there are none."""
        values = self._responses(client, begin_s, end_s)
        return float(values.mean()) if len(values) else float("nan")

    def greatest_response_s(self, *clients: str) -> float:
        """Return the greatest response time over all windows of these clients, in seconds."""
        return max((float(self._responses(each).max(initial=0.0)) for each in clients), default=0.0)

    def _responses(self, client: str, begin_s: float = 0.0, end_s: float = np.inf) -> Floats:
        inside = (begin_s <= self.times_s) & (self.times_s <= end_s)
        values = self.response_s[client][inside]
        seen: Floats = values[~np.isnan(values)]
        return seen


def _short(client: str) -> str:
    return client.rpartition("/")[2]
