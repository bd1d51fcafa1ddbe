"""Other values of the product's constants, for servers of the test process.

A constant is a default argument of the class or function that uses it, which the server calls without
that argument. A test changes the default where the call is. No setting of the product does this.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from unittest import mock


@contextmanager
def defaults(place, name, **values):
    """Give a class or function other defaults in the module ``place``, which calls it."""
    with mock.patch.object(place, name, functools.partial(getattr(place, name), **values)):
        yield
