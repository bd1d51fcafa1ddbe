"""Errors for calls and workers that the dispatcher does not know, raised before any change."""

from __future__ import annotations


class UnknownCallError(KeyError):
    """The call is neither queued nor running."""


class UnknownWorkerError(KeyError):
    """The worker has not joined."""
