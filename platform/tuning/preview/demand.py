"""Demand of the last minutes: the trace that ``fairserve trace export`` writes, and the rejected calls.

A recording has accepted calls only. The ledger adds to it, as plainly as possible:

- a run of which no call was accepted repeats the median run of its app, and arrives when it was rejected
  first;
- a run that was accepted on a retry arrives when it was rejected first;
- a run that was rejected while in progress, and not accepted again, makes one more call like its last.

Weakness: rejected runs of one app all have the same size, and those of an app without an accepted run
are not replayed. What a run rejected while in progress had still planned is unknown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall
from fairserve.interactions.tracking.identity import core_run_id
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
    estimated: frozenset[str]
    """Ids of the rejected runs."""
    came_earlier: int
    """Accepted runs that arrive at the time of their first rejection."""
    continued: frozenset[str]
    """Accepted runs rejected while in progress, with one more call."""
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
) -> PreviewDemand:
    """Return the demand since ``lead_at``. Independent of the order of the rows."""
    left_out: Counter[str] = Counter()
    made = export([call for call in recorded if call.begin_at <= until_at], block_tokens, lead_at)
    left_out["incomplete_runs"] = made.incomplete_runs
    left_out["empty_calls"] = made.empty_calls
    rows = _rows_of(recorded, served, names)
    models: dict[Run, set[str]] = defaultdict(set)
    last_at: dict[Run, float] = {}
    for row in served:
        run_id = (row.tenant, row.app, row.run)
        models[run_id].add(row.model)
        last_at[run_id] = max(row.at, last_at.get(run_id, row.at))
    asked, broken = _rejected(refused, model, lead_at, left_out)
    runs: list[Interaction] = []
    continued: set[str] = set()
    came_earlier = 0
    for run in made.trace.interactions:
        if max(call.prompt_tokens + call.output_tokens * call.samples for call in run.calls) >= (
            kv_capacity_tokens
        ):
            left_out["runs_too_large"] += 1
            continue
        at = made.begin_at + run.arrival_s
        first = rows.get(run.interaction_id)
        if first is not None:
            run_id = (first.tenant, first.app, first.run)
            if models[run_id] != {model}:
                left_out["runs_of_other_models"] += 1
                continue
            if run_id in asked and asked[run_id][0].at < at:
                at = asked[run_id][0].at
                came_earlier += 1
            if broken.pop(run_id, 0.0) > last_at[run_id]:
                continued.add(run.interaction_id)
                run = _continued(run)
            run = replace(run, user=first.user)
        runs.append(replace(run, arrival_s=round(at - lead_at, 6)))
    left_out["refusals_mid_run"] = sum(at > last_at.get(run, 0.0) for run, at in broken.items())
    never = [tries for run_id, tries in asked.items() if run_id not in last_at]
    again = [tries for run_id, tries in asked.items() if run_id in last_at]
    repeats = _repeats(runs, sorted(never), block_tokens, lead_at)
    left_out["runs_without_example"] = len(never) - len(repeats)
    ordered = sorted(runs + repeats, key=lambda each: (each.arrival_s, each.interaction_id))
    kept, cut = _newest(ordered, max_calls)
    if cut and kept:
        from_at = max(from_at, lead_at + kept[0].arrival_s)
    ids = {run.interaction_id for run in kept}
    return PreviewDemand(
        Trace("traffic", block_tokens, ()).with_interactions(kept),
        from_at,
        frozenset(ids.intersection(run.interaction_id for run in repeats)),
        came_earlier,
        frozenset(ids & continued),
        _retries(never, again),
        cut,
        {name: number for name, number in sorted(left_out.items()) if number},
    )


def _rows_of(
    recorded: Sequence[RecordedCall], served: Sequence[ServedCall], names: Pseudonyms
) -> dict[str, ServedCall]:
    """Return the ledger's row of the first call of each recorded run, by the run's pseudonym.

    A run opens when its first call is accepted, and its pseudonym is a hash of its id and that time.
    """
    by_time: dict[float, list[ServedCall]] = defaultdict(list)
    for row in served:
        by_time[round(row.at, 6)].append(row)  # databases store microseconds
    found: dict[str, ServedCall] = {}
    for call in recorded:
        if call.run in found:
            continue
        for row in by_time.get(round(call.opened_at, 6), ()):
            run_id = core_run_id(row.app, row.run)
            if names.of("run", run_id, repr(call.opened_at)) == call.run:
                found[call.run] = row
    return found


def _rejected(
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


def _continued(run: Interaction) -> Interaction:
    """Return a run with one more call like its last."""
    last = run.calls[-1]
    return replace(run, calls=(*run.calls, replace(last, call_id="more", deps=(last.call_id,))))


def _repeats(
    runs: Sequence[Interaction],
    never: Sequence[Sequence[RejectedCall]],
    block_tokens: int,
    lead_at: float,
) -> list[Interaction]:
    """Return the median run of its app, by tokens, for each rejected run whose app has runs."""
    by_app: dict[str, list[Interaction]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (_tokens(run), run.arrival_s, run.interaction_id)):
        by_app[run.app].append(run)
    step = 1 + max(
        (start + count for run in runs for call in run.calls for start, count in call.blocks),
        default=0,
    )
    made: list[Interaction] = []
    for tries in never:
        first = tries[0]
        alike = by_app.get(first.app)
        if alike:
            number = len(made) + 1
            calls = tuple(
                _repeated(call, number * step, block_tokens)
                for call in alike[len(alike) // 2].calls
            )
            at_s = round(first.at - lead_at, 6)
            made.append(
                Interaction(f"refused-{number}", first.tenant, first.app, first.user, at_s, calls)
            )
    return made


def _tokens(run: Interaction) -> int:
    return sum(call.prompt_tokens + call.output_tokens * call.samples for call in run.calls)


def _repeated(call: TraceCall, offset: int, block_tokens: int) -> TraceCall:
    """Return the call with a prompt of its own, which shares only the blocks of the system prompt."""
    blocks: list[tuple[int, int]] = []
    shared = call.system_tokens // block_tokens
    for start, count in call.blocks:
        common = min(count, shared)
        shared -= common
        if common:
            blocks.append((start, common))
        if common < count:
            blocks.append((start + common + offset, count - common))
    return replace(call, blocks=tuple(blocks))


def _retries(
    never: Sequence[Sequence[RejectedCall]], again: Sequence[Sequence[RejectedCall]]
) -> int:
    """Return the mean number of retries over abandoned runs, else the maximum."""
    if never:
        return min(MAX_RETRIES, round(sum(map(len, never)) / len(never)) - 1)
    return min(MAX_RETRIES, max(map(len, again), default=0))


def newest(trace: Trace, calls: int) -> Trace:
    """Return the newest runs with at most this many calls in total, at least one run."""
    kept, _ = _newest(trace.interactions, calls)
    return trace.with_interactions(kept or trace.interactions[-1:])


def _newest(runs: Sequence[Interaction], max_calls: int) -> tuple[list[Interaction], bool]:
    calls, first = 0, len(runs)
    while first and calls + len(runs[first - 1].calls) <= max_calls:
        first -= 1
        calls += len(runs[first].calls)
    return list(runs[first:]), first > 0
