"""The client for agent programs under its name in the server's distribution.

It is :mod:`fairserve_client`, whose wheel agent programs install without the server. The server's wheel
has the same files as ``fairserve._client``, which are used only where that wheel is not installed: one
process has one context of runs, whichever name its parts import.
"""

try:
    from fairserve_client import (
        After,
        Agent,
        Interaction,
        Run,
        agent,
        current_run,
        event_hooks,
        interaction,
    )
except ModuleNotFoundError:
    from fairserve._client import (  # type: ignore[assignment]
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
