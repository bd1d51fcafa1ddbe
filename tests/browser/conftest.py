"""A Chromium and a server for each file of tests.

Not one for all: while Playwright runs, its event loop is the thread's, and no asynchronous test can be.
"""

import pytest
from browser import Browser
from live_server import LiveServer


@pytest.fixture(scope="module")
def browser():
    found = Browser()
    yield found
    found.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with LiveServer(tmp_path_factory.mktemp("server"), workers=2) as running:
        yield running
