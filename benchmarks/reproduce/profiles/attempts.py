"""Attempts of a tenant to gain more than its share: its honest work, sent or declared differently.

An attempt changes the honest runs, their declaration, or their users. The declaration of its app is
true for the calls that it sends, unless the attempt is the declaration itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fairserve.benchmarks.reproduce.profiles.contest import CHEAT, Useful
from fairserve.benchmarks.simulate.declared import scaled
from fairserve.engine.simulated.profiles import profiles_of
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall
from fairserve.interactions.profiles.profile import MOST_CALLS, AppProfile, StageProfile

Runs = Sequence[Interaction]

_BLOCK_TOKENS = 16
_CONSTANT = 1 << 32
"""First block id of a constant prompt; no other prompt has it."""


@dataclass(frozen=True, slots=True)
class ProfileAttempt:
    """One way to send the work and to declare it."""

    runs: Runs
    declared: Mapping[str, AppProfile] = field(default_factory=dict)
    """Declared profiles by app; others declare the means of their calls."""
    useful: Useful = field(default_factory=dict)
    """Tokens of honest work in a call, by its full id; other calls are honest."""


Try = Callable[[Runs], ProfileAttempt]


def honest(runs: Runs) -> ProfileAttempt:
    """Return the honest work without any attempt."""
    return ProfileAttempt(runs)


def declares(factor: float, *, from_stage: int = 1, calls: float | None = None) -> Try:
    """Return an attempt that declares calls larger than they are, and possibly more of them."""

    def attempt(runs: Runs) -> ProfileAttempt:
        true = _truth(runs)
        stated = larger_from(true, factor, from_stage)
        return ProfileAttempt(
            runs,
            {
                CHEAT: replace(
                    stated,
                    calls_per_interaction=calls or true.calls_per_interaction,
                    run_lengths=true.run_lengths if calls is None else (),
                )
            },
        )

    return attempt


def new_apps(factor: float, runs_each: int) -> Try:
    """Return an attempt with a new app per ``runs_each`` runs, each declared larger than it is."""

    def attempt(runs: Runs) -> ProfileAttempt:
        renamed = [
            replace(run, app=f"{CHEAT}-{place // runs_each}") for place, run in enumerate(runs)
        ]
        stated = larger_from(_truth(runs), factor, 1)
        return ProfileAttempt(renamed, {run.app: stated for run in renamed})

    return attempt


def one_run(factor: float) -> Try:
    """Return an attempt that makes all calls of a user roots of one run, declared endless."""

    def attempt(runs: Runs) -> ProfileAttempt:
        endless = []
        for user in sorted({run.user for run in runs}):
            own = [run for run in runs if run.user == user]
            calls = tuple(
                replace(call, call_id=f"{run.interaction_id}-{call.call_id}", deps=(), gap_s=gap_s)
                for run in own
                for call, gap_s in ((call, run.arrival_s) for call in run.calls)
            )
            endless.append(replace(own[0], interaction_id=f"endless-{user}", calls=calls))
        stated = replace(
            larger_from(_truth(runs), factor, 1), calls_per_interaction=MOST_CALLS, run_lengths=()
        )
        return ProfileAttempt(endless, {CHEAT: stated})

    return attempt


def deep_runs(chains: int, factor: float) -> Try:
    """Return an attempt with a few endless chains; stages beyond honest runs are declared larger."""

    def attempt(runs: Runs) -> ProfileAttempt:
        true = _truth(runs)
        calls: list[list[TraceCall]] = [[] for _ in range(chains)]
        for place, run in enumerate(runs):
            chain = calls[place % chains]
            for call in run.calls:
                before = (chain[-1].call_id,) if chain else ()
                chain.append(replace(call, call_id=f"c{len(chain)}", deps=before))
        endless = [
            replace(runs[number], interaction_id=f"endless-{number}", calls=tuple(chain))
            for number, chain in enumerate(calls)
        ]
        mean = _mean(run.calls for run in runs)
        stages = (*true.stages, scaled(mean, factor))
        return ProfileAttempt(endless, {CHEAT: replace(true, stages=stages)})

    return attempt


def splits(parts: int) -> Try:
    """Return an attempt that sends each call as several small ones, one after the other."""

    def attempt(runs: Runs) -> ProfileAttempt:
        split = []
        for run in runs:
            calls: list[TraceCall] = []
            for call in run.calls:
                for part in range(parts):
                    before = (calls[-1].call_id,) if calls else ()
                    small = replace(
                        call,
                        call_id=f"{call.call_id}-{part}",
                        deps=before,
                        input_tokens=max(1, call.input_tokens // parts),
                        output_tokens=max(1, call.output_tokens // parts),
                    )
                    calls.append(small)
            split.append(replace(run, calls=tuple(calls)))
        return ProfileAttempt(split)

    return attempt


def merges(runs_each: int) -> Try:
    """Return an attempt that sends several runs as one, stage by stage, in fewer, larger calls."""

    def attempt(runs: Runs) -> ProfileAttempt:
        merged = []
        for begin in range(0, len(runs) - runs_each + 1, runs_each):
            group = runs[begin : begin + runs_each]
            calls = tuple(
                replace(
                    call,
                    input_tokens=sum(run.calls[place].input_tokens for run in group),
                    output_tokens=sum(run.calls[place].output_tokens for run in group),
                )
                for place, call in enumerate(group[0].calls)
            )
            merged.append(replace(group[0], calls=calls))
        return ProfileAttempt(merged)

    return attempt


def pads(times: float, first: int | None = None) -> Try:
    """Return an attempt that pads prompts of all runs, or of the first ones and their declaration."""

    def attempt(runs: Runs) -> ProfileAttempt:
        until = len(runs) if first is None else first
        padded = [_padded(run, times) for run in runs[:until]]
        useful = _useful(runs[:until])
        return ProfileAttempt([*padded, *runs[until:]], {CHEAT: _truth(padded)}, useful)

    return attempt


def constant_prompt(tokens: int, *, cached: bool, system: bool = True, one_in: int = 1) -> Try:
    """Return an attempt in which each call, or one run in several, begins with the same tokens.

    The tokens are a system prompt, or the start of the input, and are declared truly. They are one
    run of blocks shared by all calls or, if they are not to be cached, shared by none.
    """

    def attempt(runs: Runs) -> ProfileAttempt:
        blocks = ((_CONSTANT, tokens // _BLOCK_TOKENS),) if cached else ()
        size = "system_tokens" if system else "input_tokens"
        padded = [
            _changed(run, lambda call: {size: getattr(call, size) + tokens, "blocks": blocks})
            for run in runs[::one_in]
        ]
        if one_in > 1:
            kept = [run for place, run in enumerate(runs) if place % one_in]
            return ProfileAttempt(
                [*padded, *kept], {CHEAT: _truth([*padded, *kept])}, _useful(runs)
            )
        return ProfileAttempt(padded, {CHEAT: _truth(padded)}, _useful(runs))

    return attempt


def invents_users(users: int) -> Try:
    """Return an attempt that sends the same runs in the names of more users."""

    def attempt(runs: Runs) -> ProfileAttempt:
        return ProfileAttempt(
            [replace(run, user=f"invented-{place % users}") for place, run in enumerate(runs)]
        )

    return attempt


def lets_others_pad(times: float, one_in: int) -> Try:
    """Return an attempt in which an invented user sends some of the runs, padded."""

    def attempt(runs: Runs) -> ProfileAttempt:
        sent = [
            replace(_padded(run, times), user=f"invented-{place}") if place % one_in == 0 else run
            for place, run in enumerate(runs)
        ]
        return ProfileAttempt(sent, {CHEAT: _truth(runs)}, _useful(runs[::one_in]))

    return attempt


def names_agents(runs: Runs) -> ProfileAttempt:
    """Name each call's agent by the size of its output, which makes profiles by agent most exact."""
    return ProfileAttempt(
        [_changed(run, lambda call: {"agent": f"size-{call.output_tokens // 20}"}) for run in runs]
    )


def _changed(run: Interaction, change: Callable[[TraceCall], Mapping[str, Any]]) -> Interaction:
    """Return a run with some fields of each call replaced."""
    return replace(run, calls=tuple(replace(call, **change(call)) for call in run.calls))


def _padded(run: Interaction, times: float) -> Interaction:
    return _changed(run, lambda call: {"input_tokens": round(times * call.input_tokens)})


def _useful(runs: Iterable[Interaction]) -> dict[str, float]:
    return {
        f"{run.interaction_id}/{call.call_id}": float(call.prompt_tokens + call.output_tokens)
        for run in runs
        for call in run.calls
    }


def _truth(runs: Runs) -> AppProfile:
    """Return the means of these runs."""
    return profiles_of(Trace("", 16, tuple(runs)))[runs[0].app]


def _mean(calls: Iterable[Sequence[TraceCall]]) -> StageProfile:
    every = [call for of_run in calls for call in of_run]
    inputs = sum(call.input_tokens for call in every) / len(every)
    return StageProfile(inputs, 0.0, sum(call.output_tokens for call in every) / len(every))


def larger_from(profile: AppProfile, factor: float, from_stage: int) -> AppProfile:
    """Return a profile with ``factor`` times the tokens from a stage on."""
    stages = (
        scaled(stage, factor) if number >= from_stage else stage
        for number, stage in enumerate(profile.stages, start=1)
    )
    return replace(profile, stages=tuple(stages))
