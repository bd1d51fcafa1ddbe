"""The application mix of the FairServe paper: many users of diverse apps, and a few floods.

The paper's trace is private. The sizes of interactions are from its Table 2 (``agent_apps.py``),
three apps from Table 4: 14, 7 and 12, with their mean prompt and decode lengths and their requests
as proportions. The other apps are invented: seven, between 1/4 and 4 times as long as the middle
one, scaled so that all apps together have the means of Table 2.

Also chosen: the three apps are half of all interactions; 1,000 users (the paper: over a thousand),
each of one app, with Zipf-like shares of exponent 0.8 within it; one interaction per second from
all of them together (about 9,600 prompt tokens/s, where the paper's server processes 12,200); four
abusers who each start one every four seconds, together as many as all others; Poisson arrivals; 600
seconds.

Weakness: an abuser is one user who floods one app at a steady rate from the start; real ones pause,
and use several apps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fairserve.benchmarks.traces.generate.agent_apps import AgentApp, tokens_per_call
from fairserve.benchmarks.traces.generate.arrivals import GammaArrivals
from fairserve.benchmarks.traces.generate.programs import (
    ProgramClient,
    generate_programs,
)
from fairserve.engine.simulated.traces.model import Trace

TABLE_4 = (
    (AgentApp("app-14", 6_370.0, 102.0), 269),
    (AgentApp("app-7", 14_854.0, 74.0), 139),
    (AgentApp("app-12", 999.0, 32.0), 448),
)
"""Apps of the FairServe paper with the number of their requests."""

_MIDDLE = AgentApp("", *tokens_per_call(TABLE_4[0][0].classes))


@dataclass(frozen=True, slots=True)
class AgentMixOptions:
    """Users and their load."""

    users: int = 1000
    """Well-behaved users of all apps."""
    user_skew: float = 0.8
    """Exponent: the k-th user of an app has 1/k^skew of the first one's load; 0 means equal loads."""
    interactions_per_s: float = 1.0
    """Rate of all well-behaved users together."""
    abusive_users: int = 4
    abusive_interactions_per_s: float = 0.25
    """Rate of each abuser."""
    cv: float = 1.0
    """Coefficient of variation of the gaps between a user's interactions."""
    duration_s: float = 600.0
    table_4_share: float = 0.5
    """Share of the apps of Table 4 in the interactions of well-behaved users."""
    other_apps: int = 7
    other_spread: float = 4.0
    """Ratio of the longest other app to the middle one, and of the middle to the shortest."""
    output_spread: float = 4.0
    """The same ratio of the outputs."""
    middle: AgentApp = field(default=_MIDDLE)
    """Template of the apps' options; name and lengths are replaced."""


def agent_apps(options: AgentMixOptions) -> tuple[tuple[AgentApp, float], ...]:
    """Return the apps and their shares of the well-behaved interactions, which add up to 1."""
    prompt, output = tokens_per_call(options.middle.classes)
    requests = sum(count for _, count in TABLE_4)
    apps = [
        (
            replace(
                options.middle,
                app=app.app,
                prompt_tokens=app.prompt_tokens,
                output_tokens=app.output_tokens,
            ),
            options.table_4_share * count / requests,
        )
        for app, count in TABLE_4
    ]
    rest = 1 - options.table_4_share
    prompt_left = (prompt - sum(app.prompt_tokens * share for app, share in apps)) / rest
    output_left = (output - sum(app.output_tokens * share for app, share in apps)) / rest
    prompts = _spread(prompt_left, options.other_spread, options.other_apps)
    # Outputs in the reverse order, so that long prompts do not have long outputs.
    outputs = reversed(_spread(output_left, options.output_spread, options.other_apps))
    for index, (long, short) in enumerate(zip(prompts, outputs, strict=True)):
        app = replace(
            options.middle, app=f"other-{index + 1}", prompt_tokens=long, output_tokens=short
        )
        apps.append((app, rest / options.other_apps))
    return tuple(apps)


def _spread(mean: float, ratio: float, number: int) -> list[float]:
    """Return a geometric sequence with this mean; the last is ``ratio`` times the middle one."""
    last = number - 1
    factors = [ratio ** (2 * index / last - 1) if last else 1.0 for index in range(number)]
    middle = sum(factors) / number
    return [mean * factor / middle for factor in factors]


def generate_agent_mix(seed: int, options: AgentMixOptions | None = None) -> Trace:
    """Return the trace of the mix. Groups are ``well-behaved`` and ``abusive``.

    Users are ``<app>-user-<n>`` from 0, the most active first, and ``abuser-<n>``, app by app.
    System prompts are shared by all users of an app.
    """
    options = options or AgentMixOptions()
    apps = agent_apps(options)
    clients = []
    for (app, share), users in zip(apps, _users_of_apps(apps, options.users), strict=True):
        activity = [1 / (rank + 1) ** options.user_skew for rank in range(users)]
        per_activity = options.interactions_per_s * share / sum(activity)
        clients += [
            ProgramClient(
                f"{app.app}-user-{rank}",
                app,
                GammaArrivals(per_activity * active, options.cv),
                "well-behaved",
            )
            for rank, active in enumerate(activity)
        ]
    flood = GammaArrivals(options.abusive_interactions_per_s, options.cv)
    clients += [
        ProgramClient(f"abuser-{index}", apps[index % len(apps)][0], flood, "abusive")
        for index in range(options.abusive_users)
    ]
    return generate_programs(
        "agent-mix", clients, options.duration_s, seed, tenant="agents", share_system=True
    )


def _users_of_apps(apps: tuple[tuple[AgentApp, float], ...], users: int) -> list[int]:
    """Return the users per app in proportion to the shares, at least 1 each, ``users`` in total."""
    counts = [1] * len(apps)
    for _ in range(users - len(apps)):
        short = [share / count for (_, share), count in zip(apps, counts, strict=True)]
        counts[short.index(max(short))] += 1
    return counts
