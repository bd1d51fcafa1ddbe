"""A database with outages on demand, and a manual clock."""

from contextlib import contextmanager

from sqlalchemy import event
from sqlalchemy.exc import OperationalError


class CutDatabase:
    """Lets no transaction of an engine begin while it is ``away``."""

    def __init__(self, *engines):
        self.away = False
        for engine in engines:
            event.listen(engine, "begin", self._begin)

    def _begin(self, connection):
        if self.away:
            raise OperationalError("BEGIN", {}, ConnectionError("the database is away"))

    @contextmanager
    def cut(self):
        self.away = True
        try:
            yield
        finally:
            self.away = False


class TurnedClock:
    """A clock whose seconds pass only when a test adds them."""

    def __init__(self, now_s=0.0):
        self.now_s = now_s

    def __call__(self):
        return self.now_s

    def turn(self, seconds):
        self.now_s += seconds
