"""The engine's interface to a grammar: the tokens that may follow. ``json_mode`` implements it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class TokenConstraint(Protocol):
    """Constraint that follows the output of one sequence."""

    problem: str
    """Reason why no token is allowed any more; empty if there is none."""

    def allowed(self, output: list[int]) -> npt.NDArray[np.int32]:
        """Return the tokens that may follow ``output`` as bits, lowest bit of the first word first.

        ``output`` is the whole output, and only grows between two calls. With a ``problem`` no bit is
        set.
        """
        ...


class Grammar(Protocol):
    """Grammar for any number of sequences."""

    def start(self) -> TokenConstraint:
        """Return a constraint for one new sequence."""
        ...
