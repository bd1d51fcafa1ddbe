"""What is not known to the dispatcher: raised before anything has changed."""

from __future__ import annotations


class UnknownCallError(KeyError):
    """No such call is queued or running."""


class UnknownWorkerError(KeyError):
    """No such worker has joined."""
