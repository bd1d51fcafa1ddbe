"""Profiles of a simulation that are wrong by a factor, and the learned ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairserve.engine.simulated.profiles import profiles_of
from fairserve.engine.simulated.replay_profiles import ProfileChange
from fairserve.engine.simulated.traces.model import Trace
from fairserve.interactions.profiles.profile import AppProfile, StageProfile


def wrong_profiles(trace: Trace, declared: Sequence[str]) -> dict[str, AppProfile]:
    """Return profiles for ``APP=FACTOR``: the trace's tokens and calls times it. Raises ValueError."""
    true = profiles_of(trace) if declared else {}
    wrong = {}
    for text in declared:
        app, equals, factor = text.rpartition("=")
        if not equals or app not in true:
            raise ValueError(f"--declared is {text!r}; allowed: APP=FACTOR of {', '.join(true)}")
        try:
            wrong[app] = larger(true[app], float(factor))
        except ValueError as error:
            raise ValueError(f"--declared is {text!r}: {error}") from None
    return wrong


def larger(profile: AppProfile, factor: float) -> AppProfile:
    """Return the profile with all tokens and calls times ``factor``, without run lengths."""
    return replace(
        profile,
        stages=tuple(scaled(stage, factor) for stage in profile.stages),
        calls_per_interaction=max(1.0, factor * profile.calls_per_interaction),
        run_lengths=(),
    )


def scaled(stage: StageProfile, factor: float) -> StageProfile:
    """Return a stage with scaled tokens. Raises ValueError if the factor is out of range."""
    return StageProfile(
        factor * stage.input_tokens, factor * stage.system_tokens, factor * stage.output_tokens
    )


def profile_figures(changes: Sequence[ProfileChange]) -> Mapping[str, list[dict[str, Any]]]:
    """Return the profiles in force by app, for the summary."""
    figures: dict[str, list[dict[str, Any]]] = {}
    for change in changes:
        held = change.held
        figures.setdefault(change.app, []).append(
            {
                "since_s": held.since_s,
                "interactions": change.interactions,
                "source": held.source,
                "reason": held.reason,
                "calls_per_interaction": held.profile.calls_per_interaction,
                "tokens_by_stage": [stage.total_tokens for stage in held.profile.stages],
            }
        )
    return figures
