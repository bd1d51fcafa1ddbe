"""Errors for calls and workers unknown to the dispatcher, raised before any state changes."""

from __future__ import annotations


class UnknownCallError(KeyError):
    """The call is neither queued nor running."""


class UnknownWorkerError(KeyError):
    """The worker has not joined."""
