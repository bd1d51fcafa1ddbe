"""Errors of calls that do not fit their interaction; all are raised before any state changes."""

from __future__ import annotations


class InteractionError(ValueError):
    """A call or a request does not fit its interaction; the state is unchanged."""


class UnknownParentError(InteractionError):
    """A parent is not a call of this interaction."""


class CycleError(InteractionError):
    """The call would depend on itself."""


class DuplicateCallError(InteractionError):
    """The interaction already has a call of this id."""


class InteractionClosedError(InteractionError):
    """The interaction has ended already."""


class InteractionNotFoundError(InteractionError):
    """There is no such interaction."""


class ForeignInteractionError(InteractionError):
    """The interaction belongs to another user or app."""


class DeclaredInteractionError(InteractionError):
    """The interaction belongs to a program, and the call was not issued by it."""


class TrackerFullError(InteractionError):
    """The limit of live interactions, or of calls in one interaction, is reached."""


class OpenInteractionsError(InteractionError):
    """The tenant or the user has reached its limit of open interactions."""


class OpeningRateError(InteractionError):
    """The user has reached its limit of interactions opened per minute."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
