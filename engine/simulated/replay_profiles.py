"""Profiles of a replay's apps: declared, or learned during the replay by the serving code.

The service learns from the ledger's rows; here the ended calls take their place. Profiles are
learned every ``learning_interval_s`` virtual seconds, as in the service.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

from fairserve.engine.simulated.profiles import profiles_of
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Trace
from fairserve.interactions.call import Call, TokenUsage
from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.profiles.profile_learning import (
    InForce,
    as_declared,
    learn,
)
from fairserve.interactions.profiles.profile_statistics import CallSeen, RunSeen, figures_of
from fairserve.interactions.tracking.run_end import ENDED_BY_ITSELF, RunEnd
from fairserve.scheduling.events import AppChanged


@dataclass(frozen=True, slots=True)
class ProfileChange:
    """A profile that takes effect."""

    app: str
    interactions: int
    """Number of interactions of the app whose calls were seen until then."""
    held: InForce


class ReplayProfiles:
    """Declared and current profile of each app."""

    def __init__(self, trace: Trace, options: ReplayOptions) -> None:
        self._options = options
        self._learning = options.learning
        self._declared = {**profiles_of(trace), **options.profiles}
        self._held: dict[str, InForce] = {}
        self._calls: dict[str, deque[tuple[float, CallSeen]]] = defaultdict(deque)
        self._runs: dict[str, dict[str, tuple[float, RunSeen]]] = defaultdict(dict)
        self._changed: set[str] = set()
        self._due_s = 0.0
        self.changes: list[ProfileChange] = []

    def declared(self) -> list[AppChanged]:
        """Return the profiles of all apps at the start."""
        if self._learning is None:
            return [self._event(app, profile) for app, profile in self._declared.items()]
        events = []
        for app, profile in self._declared.items():
            held = self._held[app] = as_declared(profile, 0.0, self._learning)
            self.changes.append(ProfileChange(app, 0, held))
            events.append(self._event(app, held.profile))
        return events

    def _event(self, app: str, profile: AppProfile) -> AppChanged:
        return AppChanged(app, profile, self._options.limits)

    def call_ended(self, call: Call, usage: TokenUsage, arrival_s: float) -> None:
        """Record the end of a call; only served calls count."""
        if self._learning is None or not (usage.prompt_tokens or usage.output_tokens):
            return
        seen = CallSeen(
            call.stage,
            call.agent,
            usage.input_tokens,
            usage.system_tokens,
            usage.output_tokens,
            0.0,
            usage.cached_tokens,
        )
        calls, runs = self._calls[call.app], self._runs[call.app]
        calls.append((arrival_s, seen))
        if len(calls) > self._learning.max_calls:
            calls.popleft()
        before = runs.get(call.interaction_id)
        made, tokens = (0, 0) if before is None else (before[1].calls, before[1].tokens)
        runs[call.interaction_id] = (
            arrival_s,
            RunSeen(made + 1, False, 0.0, tokens + seen.tokens),
        )
        self._changed.add(call.app)

    def run_ended(self, end: RunEnd, now_s: float) -> None:
        """Record the end of an interaction."""
        found = self._runs[end.app].get(end.interaction_id)
        if found is not None:
            ended = end.state in ENDED_BY_ITSELF
            self._runs[end.app][end.interaction_id] = (now_s, found[1]._replace(ended=ended))

    def due(self, now_s: float) -> list[AppChanged]:
        """Return the profiles that take effect; learn them if the interval is over."""
        if self._learning is None or now_s < self._due_s:
            return []
        self._due_s = now_s + self._options.learning_interval_s
        unused = {app for app, held in self._held.items() if held.source == "declared"}
        changed, self._changed = sorted(self._changed | unused), set()
        return [event for app in changed if (event := self._learn(app, now_s)) is not None]

    def _learn(self, app: str, now_s: float) -> AppChanged | None:
        options = self._learning
        assert options is not None
        calls, runs = self._calls[app], self._runs[app]
        while calls and now_s - calls[0][0] > options.window_s:
            calls.popleft()
        for run_id in [key for key, (at_s, _) in runs.items() if now_s - at_s > options.window_s]:
            del runs[run_id]
        figures = figures_of(
            [seen._replace(age_s=now_s - at_s) for at_s, seen in calls],
            [seen._replace(age_s=now_s - at_s) for at_s, seen in runs.values()],
            min_samples=options.min_samples,
            half_life_s=options.half_life_s,
        )
        held = learn(self._declared[app], self._held[app], figures, now_s, options)
        if held is self._held[app]:
            return None
        self._held[app] = held
        self.changes.append(ProfileChange(app, figures.interactions, held))
        return self._event(app, held.profile)
