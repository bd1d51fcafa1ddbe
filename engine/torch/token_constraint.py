"""The engine's interface to a grammar: the tokens that may follow. ``json_mode`` has one."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class TokenConstraint(Protocol):
    """A constraint that follows the output of one sequence."""

    problem: str
    """Reason why no token is allowed any more; empty if there is none."""

    def allowed(self, output: list[int]) -> npt.NDArray[np.int32]:
        """Return the tokens that may follow ``output``, a bit each, the lowest of the first word first.

        ``output`` is the whole output, and only grows between two calls. With a ``problem`` no bit is
        set.
        """
        ...


class Grammar(Protocol):
    """A grammar for any number of sequences."""

    def start(self) -> TokenConstraint:
        """Return a constraint for one new sequence."""
        ...
