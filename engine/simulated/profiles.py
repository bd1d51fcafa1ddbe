"""Token profiles that the apps of a trace would have registered: the trace's means.

The values of a stage are the means over all calls of the app at that depth of their graphs.
Weakness: the whole trace is known in advance; declare other profiles to see the effect of wrong
ones.
"""

from __future__ import annotations

from collections import defaultdict

from fairserve.engine.simulated.traces.model import Interaction, Trace
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.profiles.profile_statistics import run_lengths

_MOST_STAGES = 32
"""Maximum stages of a profile; later ones count as the last."""
_LONGEST_IDLE_S = 7 * 86_400.0


def stages_of(interaction: Interaction) -> dict[str, int]:
    """Return the stage of each call: 1 + the longest path from a root."""
    stages: dict[str, int] = {}
    for call in interaction.calls:
        stages[call.call_id] = 1 + max((stages[dep] for dep in call.deps), default=0)
    return stages


def profiles_of(trace: Trace) -> dict[str, AppProfile]:
    """Return a profile per app. Idle time-outs exceed the longest gap, so no run expires in one."""
    tokens: dict[str, dict[int, list[tuple[int, int, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    lengths: dict[str, list[int]] = defaultdict(list)
    longest_gap_s: dict[str, float] = defaultdict(float)
    for interaction in trace.interactions:
        app = interaction.app
        lengths[app].append(len(interaction.calls))
        stages = stages_of(interaction)
        for call in interaction.calls:
            stage = min(stages[call.call_id], _MOST_STAGES)
            outputs = call.output_tokens * call.samples
            tokens[app][stage].append((call.input_tokens, call.system_tokens, outputs))
            longest_gap_s[app] = max(longest_gap_s[app], call.gap_s)
    return {
        app: AppProfile(
            tuple(_mean(of_stage[stage]) for stage in sorted(of_stage)),
            calls_per_interaction=sum(lengths[app]) / len(lengths[app]),
            idle_timeout_s=min(300.0 + longest_gap_s[app], _LONGEST_IDLE_S),
            run_lengths=run_lengths(lengths[app]),
        )
        for app, of_stage in tokens.items()
    }


def _mean(calls: list[tuple[int, int, int]]) -> StageProfile:
    number = len(calls)
    inputs, system, outputs = (sum(column) / number for column in zip(*calls, strict=True))
    return StageProfile(inputs, system, outputs)
