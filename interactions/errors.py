"""Errors of calls that do not fit their interaction, raised before anything has changed."""

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
    """The interaction is a program's, and the call is not one of the program's own."""


class TrackerFullError(InteractionError):
    """Too many interactions, or too many calls in one of them, are live."""


class OpenInteractionsError(InteractionError):
    """The tenant or the user has reached its limit of open interactions."""


class OpeningRateError(InteractionError):
    """The user has reached its limit of interactions opened per minute."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
