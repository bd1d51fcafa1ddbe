"""Demand of the last minutes as a trace: recorded runs, and drawn ones in place of rejected runs.

A recording has accepted calls only; the ledger has app, user, first arrival and number of attempts of a
rejected run. It is replayed as an accepted run of its app, drawn by a seeded generator, and so is a run
that was rejected while in progress and not accepted again. Blocks that the drawn run shares with other
runs remain shared; the others are replaced by new ones. A run accepted on a retry is in the recording,
and arrives at its first rejection.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall
from fairserve.platform.reporting.traffic.export import export
from fairserve.platform.reporting.traffic.lines import Pseudonyms, RecordedCall
from fairserve.platform.tuning.preview.input import RejectedCall, ServedCall

NO_DEMAND = frozenset(
    {
        "draining",
        "model_not_allowed",
        "contract_budget",
        "contract_budget_held",
        "contract_soft_budget",
        "contract_call_too_large",
        "contract_too_many_users",
    }
)
"""Reasons of rejections that a replay cannot reproduce, because it has no costs; they are omitted."""
MAX_RETRIES = 10

Run = tuple[str, str, str]
"""Tenant, app, and the client's id of the interaction."""


@dataclass(frozen=True, slots=True)
class PreviewDemand:
    """The demand to replay, with counts of omissions. Trace times are relative to ``lead_at``."""

    trace: Trace
    from_at: float
    """Start of the window of the figures."""
    drawn: frozenset[str]
    """Ids of drawn runs, which replace rejected ones."""
    came_earlier: int
    """Accepted runs that arrive at the time of their first rejection."""
    retries: int
    """Retries of a rejected call, by the mean of the clients."""
    cut: bool
    """True if older runs were omitted because there are too many calls."""
    left_out: Mapping[str, int]
    """Runs and rejections that are not replayed, by cause."""


def demand_of(
    recorded: Sequence[RecordedCall],
    block_tokens: int,
    served: Sequence[ServedCall],
    refused: Sequence[RejectedCall],
    names: Pseudonyms,
    *,
    model: str,
    kv_capacity_tokens: int,
    lead_at: float,
    from_at: float,
    until_at: float,
    max_calls: int,
    seed: int,
) -> PreviewDemand:
    """Return the demand since ``lead_at``. Independent of the order of the rows."""
    left_out: Counter[str] = Counter()
    made = export([call for call in recorded if call.begin_at <= until_at], block_tokens, lead_at)
    left_out["incomplete_runs"] = made.incomplete_runs
    left_out["empty_calls"] = made.empty_calls
    rows = _rows_of(recorded, served, names)
    asked, broken = _asked(refused, model, lead_at, left_out)
    last_at = _last_accepted(served)
    runs: list[Interaction] = []
    missing: list[tuple[float, Run, str]] = []
    came_earlier = 0
    for run in made.trace.interactions:
        own = rows.get(run.interaction_id, ())
        if any(row.model != model for row in own):
            left_out["runs_of_other_models"] += 1
            continue
        if _most_tokens(run) >= kv_capacity_tokens:
            left_out["runs_too_large"] += 1
            continue
        at = made.begin_at + run.arrival_s
        if own:
            name, user = _run_of(own[0]), own[0].user
            if (tries := asked.get(name)) and tries[0].at < at:
                at = tries[0].at
                came_earlier += 1
            if broken.pop(name, 0.0) > last_at[name]:
                missing.append((at, name, user))
                continue
            run = replace(run, user=user)
        runs.append(replace(run, arrival_s=round(at - lead_at, 6)))
    never = {run: tries for run, tries in asked.items() if run not in last_at}
    again = {run: tries for run, tries in asked.items() if run in last_at}
    missing += [(tries[0].at, run, tries[0].user) for run, tries in never.items()]
    left_out["refusals_mid_run"] = sum(at > last_at.get(run, 0.0) for run, at in broken.items())
    pool = _Pool(runs, seed)
    for at, (tenant, app, _), user in sorted(missing):
        calls = pool.draw(app)
        if calls is None:
            left_out["refused_runs_of_unseen_apps"] += 1
            continue
        run_id = f"refused-{len(runs) + 1}"
        runs.append(Interaction(run_id, tenant, app, user, round(at - lead_at, 6), calls))
    drawn = {run.interaction_id for run in runs[pool.size :]}
    ordered = sorted(runs, key=lambda each: (each.arrival_s, each.interaction_id))
    kept, cut = _newest(ordered, max_calls)
    if cut and kept:
        from_at = max(from_at, lead_at + kept[0].arrival_s)
    return PreviewDemand(
        Trace("traffic", block_tokens, ()).with_interactions(kept),
        from_at,
        frozenset(drawn & {run.interaction_id for run in kept}),
        came_earlier,
        _retries(never, again),
        cut,
        {name: number for name, number in sorted(left_out.items()) if number},
    )


def _rows_of(
    recorded: Sequence[RecordedCall], served: Sequence[ServedCall], names: Pseudonyms
) -> dict[str, list[ServedCall]]:
    """Return the ledger's rows of each recorded run by its pseudonym."""
    rows = {names.of("row", row.call_id): row for row in served}
    found: dict[str, list[ServedCall]] = defaultdict(list)
    for call in recorded:
        if (row := rows.get(call.row)) is not None:
            found[call.run].append(row)
    return found


def _run_of(row: ServedCall) -> Run:
    return row.tenant, row.app, row.run


def _asked(
    refused: Sequence[RejectedCall], model: str, lead_at: float, left_out: Counter[str]
) -> tuple[dict[Run, list[RejectedCall]], dict[Run, float]]:
    """Return the rejections of each run that was rejected as a new one, oldest first, and the time of
    the last rejection of runs in progress.
    """
    asked: dict[Run, list[RejectedCall]] = defaultdict(list)
    broken: dict[Run, float] = {}
    for row in sorted(refused, key=lambda row: (row.at, row)):
        if row.at < lead_at:
            continue
        if row.model != model:
            left_out["refusals_of_other_models"] += 1
        elif row.reason in NO_DEMAND:
            left_out["refusals_by_other_reasons"] += 1
        elif row.mid_run:
            broken[row.tenant, row.app, row.run] = row.at
        else:
            asked[row.tenant, row.app, row.run].append(row)
    return asked, broken


def _last_accepted(served: Sequence[ServedCall]) -> dict[Run, float]:
    last: dict[Run, float] = {}
    for row in served:
        run = _run_of(row)
        last[run] = max(row.at, last.get(run, row.at))
    return last


def _retries(
    never: Mapping[Run, Sequence[RejectedCall]], again: Mapping[Run, Sequence[RejectedCall]]
) -> int:
    """Return the mean number of retries over abandoned runs, else the maximum."""
    if never:
        return min(MAX_RETRIES, round(sum(map(len, never.values())) / len(never)) - 1)
    return min(MAX_RETRIES, max(map(len, again.values()), default=0))


def _newest(runs: Sequence[Interaction], max_calls: int) -> tuple[list[Interaction], bool]:
    calls, first = 0, len(runs)
    while first and calls + len(runs[first - 1].calls) <= max_calls:
        first -= 1
        calls += len(runs[first].calls)
    return list(runs[first:]), first > 0


def newest(trace: Trace, calls: int) -> Trace:
    """Return the newest runs with at most this many calls in total, at least one run."""
    kept, _ = _newest(trace.interactions, calls)
    return trace.with_interactions(kept or trace.interactions[-1:])


def _most_tokens(run: Interaction) -> int:
    return max(call.prompt_tokens + call.output_tokens * call.samples for call in run.calls)


class _Pool:
    """Accepted runs by app, from which runs are drawn in place of rejected ones."""

    def __init__(self, runs: Sequence[Interaction], seed: int) -> None:
        self.size = len(runs)
        self._random = Random(seed)  # noqa: S311  the choice of a typical run is not a secret
        self._by_app: dict[str, list[Interaction]] = defaultdict(list)
        seen: Counter[int] = Counter()
        for run in sorted(runs, key=lambda each: (each.arrival_s, each.interaction_id)):
            self._by_app[run.app].append(run)
            seen.update({number for call in run.calls for number in call.block_ids})
        self._shared = {number for number, times in seen.items() if times > 1}
        self._step = 1 + max(seen, default=0)
        self._offset = 0

    def draw(self, app: str) -> tuple[TraceCall, ...] | None:
        """Return the calls of a run of the app; None if it has none.

        Blocks that only the drawn run has are replaced by new ones.
        """
        alike = self._by_app.get(app)
        if not alike:
            return None
        self._offset += self._step
        calls = alike[self._random.randrange(len(alike))].calls
        return tuple(replace(call, blocks=self._blocks(call)) for call in calls)

    def _blocks(self, call: TraceCall) -> tuple[tuple[int, int], ...]:
        blocks: list[tuple[int, int]] = []
        for start, count in call.blocks:
            # Prefixes are complete, so the shared blocks precede the others.
            common = next((i for i in range(count) if start + i not in self._shared), count)
            if common:
                blocks.append((start, common))
            if common < count:
                blocks.append((start + common + self._offset, count - common))
        return tuple(blocks)
