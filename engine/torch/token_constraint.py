"""What the engine needs of a grammar: which tokens may come next. See ``json_mode`` for one."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class TokenConstraint(Protocol):
    """Follows the output of one sequence."""

    problem: str
    """Why no token is allowed any more; empty while all is well."""

    def allowed(self, output: list[int]) -> npt.NDArray[np.int32]:
        """The tokens that may follow ``output``, one bit each, the lowest of the first word first.

        ``output`` is all of it, and only grows between two calls. With a ``problem`` no bit is set.
        """
        ...


class Grammar(Protocol):
    """What any number of sequences may be held to."""

    def start(self) -> TokenConstraint:
        """A constraint for one new sequence."""
        ...
