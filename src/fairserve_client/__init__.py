"""Names the run and agent of every call of an agent program, with any ``openai`` client.

The public names are below; :mod:`fairserve_client.runs` describes them.
"""

from .runs import (
    After,
    Agent,
    Interaction,
    Run,
    agent,
    current_run,
    event_hooks,
    interaction,
)

__all__ = [
    "After",
    "Agent",
    "Interaction",
    "Run",
    "agent",
    "current_run",
    "event_hooks",
    "interaction",
]
