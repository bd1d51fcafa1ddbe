"""What does not fit its interaction: raised before anything has changed."""

from __future__ import annotations


class InteractionError(ValueError):
    """A call or a request does not fit its interaction; nothing was changed."""


class UnknownParentError(InteractionError):
    """A parent is not a call of this interaction."""


class CycleError(InteractionError):
    """The call would depend on itself."""


class DuplicateCallError(InteractionError):
    """The interaction has a call of this id already."""


class InteractionClosedError(InteractionError):
    """The interaction has ended."""


class InteractionNotFoundError(InteractionError):
    """There is no such interaction."""


class ForeignInteractionError(InteractionError):
    """The interaction belongs to another user or app."""


class DeclaredInteractionError(InteractionError):
    """The interaction is a program's, and the call is not one of the program's own."""


class TrackerFullError(InteractionError):
    """Too many interactions, or calls in one of them, are live."""


class OpenInteractionsError(InteractionError):
    """The tenant or the user has as many open interactions as one may have."""


class OpeningRateError(InteractionError):
    """The user has opened as many interactions within a minute as one may open."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
