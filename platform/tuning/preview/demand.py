"""Demand of the last minutes as a trace: recorded runs, and estimates of rejected ones.

A recording has accepted calls only; the ledger has app, user, first arrival and number of attempts of a
rejected run. It is replayed as an accepted run of its app, drawn by a seeded generator, or, if the app
has none, by its profile. Blocks that the drawn run shares with other runs remain shared; the others are
replaced by new ones. A run accepted on a retry is in the recording, and arrives at its first rejection.
A run that was rejected while in progress and not accepted again continues like a longer run of its app.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall
from fairserve.interactions.profiles.profile import DEFAULT_PROFILE, AppProfile
from fairserve.platform.reporting.traffic.export import export
from fairserve.platform.reporting.traffic.lines import RecordedCall
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
_MOST_STAGES = 32

Run = tuple[str, str, str]
"""Tenant, app, and the client's id of the interaction."""
UserPseudonym = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class PreviewDemand:
    """The demand to replay, with counts of omissions. Trace times are relative to ``lead_at``."""

    trace: Trace
    from_at: float
    """Start of the window of the figures."""
    estimated: frozenset[str]
    """Ids of estimated rejected runs."""
    estimated_by_profile: int
    """Runs that are estimated by their app's profile."""
    came_earlier: int
    """Accepted runs that arrive at the time of their first rejection."""
    continued: frozenset[str]
    """Accepted runs rejected while in progress, whose remaining calls are estimated."""
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
    profiles: Mapping[str, AppProfile],
    pseudonym: UserPseudonym,
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
    users = {(row.tenant, row.user) for row in served}
    names = {pseudonym(tenant, user): user for tenant, user in users}
    found = _Matching(served, pseudonym).runs(recorded)
    asked, broken = _asked(refused, model, lead_at, left_out)
    last_at = _last_accepted(served)
    runs: list[Interaction] = []
    unfinished: set[str] = set()
    came_earlier = 0
    for run in made.trace.interactions:
        seen = found.get(run.interaction_id)
        if seen is not None and seen.models - {model}:
            left_out["runs_of_other_models"] += 1
            continue
        if _most_tokens(run) >= kv_capacity_tokens:
            left_out["runs_too_large"] += 1
            continue
        at = made.begin_at + run.arrival_s
        if seen is not None and (tries := asked.get(seen.run)) and tries[0].at < at:
            at = tries[0].at
            came_earlier += 1
        if seen is not None and broken.pop(seen.run, 0.0) > last_at[seen.run]:
            unfinished.add(run.interaction_id)
        user = names.get(run.user.removeprefix("user-"), run.user)
        runs.append(replace(run, user=user, arrival_s=round(at - lead_at, 6)))
    never = {run: tries for run, tries in asked.items() if run not in last_at}
    again = {run: tries for run, tries in asked.items() if run in last_at}
    left_out["refusals_mid_run"] = sum(at > last_at.get(run, 0.0) for run, at in broken.items())
    estimates = _Estimates(runs, profiles, block_tokens, kv_capacity_tokens, seed)
    runs = [estimates.continued(run) if run.interaction_id in unfinished else run for run in runs]
    more = [estimates.run(tries, lead_at) for tries in sorted(never.values())]
    ordered = sorted(runs + more, key=lambda each: (each.arrival_s, each.interaction_id))
    kept, cut = _newest(ordered, max_calls)
    if cut and kept:
        from_at = max(from_at, lead_at + kept[0].arrival_s)
    ids = {run.interaction_id for run in kept}
    return PreviewDemand(
        Trace("traffic", block_tokens, ()).with_interactions(kept),
        from_at,
        frozenset(ids & estimates.ids),
        len(ids & estimates.of_profiles),
        came_earlier,
        frozenset(ids & unfinished),
        _retries(never, again),
        cut,
        {name: number for name, number in sorted(left_out.items()) if number},
    )


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
        run = (row.tenant, row.app, row.run)
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


# --- ledger rows of recorded calls ----------------------------------------------------------------


@dataclass(slots=True)
class _Seen:
    """The ledger's values for a recorded run."""

    run: Run
    models: set[str]


class _Matching:
    """Matches recorded calls, which have no model, with the nearest ledger rows of equal counts."""

    def __init__(self, served: Sequence[ServedCall], pseudonym: UserPseudonym) -> None:
        self._rows: dict[tuple[object, ...], list[ServedCall]] = defaultdict(list)
        names: dict[tuple[str, str], str] = {}
        for row in sorted(served, key=lambda row: (row.at, row.tenant, row.app, row.run)):
            who = (row.tenant, row.user)
            name = names.get(who) or names.setdefault(who, pseudonym(*who))
            prompt = row.input_tokens + row.system_tokens
            counts = (row.stage, prompt, row.system_tokens, row.output_tokens)
            self._rows[(row.tenant, row.app, name, *counts)].append(row)

    def runs(self, recorded: Sequence[RecordedCall]) -> dict[str, _Seen]:
        """Return the matched runs by pseudonym; a run is identified by its first call."""
        found: dict[str, _Seen] = {}
        for call in recorded:
            row = self._row(call)
            if row is None:
                continue
            seen = found.setdefault(call.run, _Seen((row.tenant, row.app, row.run), set()))
            seen.models.add(row.model)
        return found

    def _row(self, call: RecordedCall) -> ServedCall | None:
        counts = (call.stage, call.prompt_tokens, call.system_tokens, call.output_tokens)
        rows = self._rows.get((call.tenant, call.app, call.user, *counts))
        if not rows:
            return None
        place = bisect_left(rows, call.begin_at, key=lambda row: row.at)
        near = rows[max(0, place - 1) : place + 1]
        return min(near, key=lambda row: abs(row.at - call.begin_at))


# --- rejected runs --------------------------------------------------------------------------------


class _Estimates:
    """Estimator of rejected runs."""

    def __init__(
        self,
        runs: Sequence[Interaction],
        profiles: Mapping[str, AppProfile],
        block_tokens: int,
        kv_capacity_tokens: int,
        seed: int,
    ) -> None:
        self.ids: set[str] = set()
        self.of_profiles: set[str] = set()
        self._profiles = profiles
        self._block_tokens = block_tokens
        self._most_tokens = kv_capacity_tokens - 1
        self._random = Random(seed)  # noqa: S311  the choice of a typical run is not a secret
        self._by_app: dict[str, list[Interaction]] = defaultdict(list)
        seen: Counter[int] = Counter()
        for run in sorted(runs, key=lambda each: (each.arrival_s, each.interaction_id)):
            self._by_app[run.app].append(run)
            seen.update({number for call in run.calls for number in call.block_ids})
        self._shared = {number for number, times in seen.items() if times > 1}
        self._fresh = 1 + max(seen, default=0)
        self._step = self._fresh

    def run(self, tries: Sequence[RejectedCall], lead_at: float) -> Interaction:
        """Return the estimate of a run with these rejected attempts."""
        first = tries[0]
        run_id = f"refused-{len(self.ids) + 1}"
        self.ids.add(run_id)
        alike = self._by_app.get(first.app)
        if alike:
            calls = self._own(alike[self._random.randrange(len(alike))].calls)
        else:
            self.of_profiles.add(run_id)
            calls = self._typical(self._profiles.get(first.app, DEFAULT_PROFILE))
        return Interaction(
            run_id, first.tenant, first.app, first.user, round(first.at - lead_at, 6), calls
        )

    def continued(self, run: Interaction) -> Interaction:
        """Return a run that was rejected while in progress, continued with calls of a longer run."""
        made, last = len(run.calls), run.calls[-1]
        longer = [each for each in self._by_app[run.app] if len(each.calls) > made]
        more = longer[self._random.randrange(len(longer))].calls[made:] if longer else (last,)
        names = {call.call_id: f"more-{number}" for number, call in enumerate(more, start=1)}
        calls = [
            replace(
                call,
                call_id=names[call.call_id],
                deps=tuple(names[dep] for dep in call.deps if dep in names) or (last.call_id,),
                blocks=self._begin(last.blocks, call.prompt_tokens // self._block_tokens),
            )
            for call in more
        ]
        return replace(run, calls=(*run.calls, *calls))

    @staticmethod
    def _begin(blocks: Sequence[tuple[int, int]], most: int) -> tuple[tuple[int, int], ...]:
        """Return the longest prefix that a prompt can share with the previous one."""
        found: list[tuple[int, int]] = []
        for start, count in blocks:
            if most <= 0:
                break
            found.append((start, min(count, most)))
            most -= count
        return tuple(found)

    def _own(self, calls: Sequence[TraceCall]) -> tuple[TraceCall, ...]:
        """Return the calls with new blocks in place of those that only the drawn run has."""
        offset, self._fresh = self._fresh, self._fresh + self._step
        return tuple(replace(call, blocks=self._blocks(call, offset)) for call in calls)

    def _blocks(self, call: TraceCall, offset: int) -> tuple[tuple[int, int], ...]:
        blocks: list[tuple[int, int]] = []
        for start, count in call.blocks:
            # Prefixes are complete, so the shared blocks precede the others.
            common = next((i for i in range(count) if start + i not in self._shared), count)
            if common:
                blocks.append((start, common))
            if common < count:
                blocks.append((start + common + offset, count - common))
        return tuple(blocks)

    def _typical(self, profile: AppProfile) -> tuple[TraceCall, ...]:
        """Return a chain of the expected number of calls."""
        calls: list[TraceCall] = []
        for number in range(1, min(_MOST_STAGES, max(1, round(profile.calls_per_interaction))) + 1):
            stage = profile.stage(number)
            outputs = min(max(1, round(stage.output_tokens)), max(1, self._most_tokens // 2))
            room = max(1, self._most_tokens - outputs)
            system = min(round(stage.system_tokens), room - 1)
            inputs = min(max(1, round(stage.input_tokens)), room - system)
            deps = (str(number - 1),) if number > 1 else ()
            calls.append(TraceCall(str(number), "default", deps, 0.0, inputs, system, outputs))
        return tuple(calls)
