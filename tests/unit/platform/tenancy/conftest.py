"""A database whose readers are counted, called back and cut off."""

from contextlib import contextmanager

import pytest
from data_folders import NAME, new_data_dir
from sqlalchemy.exc import OperationalError

from fairserve.platform.db.engine import connect, session_factory


class Sessions:
    """A session factory that counts, calls a hook after each read, and can be out of order."""

    def __init__(self, factory):
        self.begin = factory.begin
        self._factory = factory
        self.opened = 0
        self.broken = False
        self.hook = None

    @contextmanager
    def __call__(self):
        self.opened += 1
        if self.broken:
            raise OperationalError("select", {}, Exception("gone"))
        with self._factory() as session:
            yield session
        if self.hook is not None:
            self.hook()


@pytest.fixture
def sessions(tmp_path):
    engine = connect(f"sqlite:///{new_data_dir(tmp_path / 'data') / NAME}")
    yield Sessions(session_factory(engine))
    engine.dispose()
