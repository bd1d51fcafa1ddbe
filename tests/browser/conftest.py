"""A Chromium for all tests of the console, and a server for each file of them."""

import pytest
from browser import Browser
from live_server import LiveServer


@pytest.fixture(scope="session")
def browser():
    found = Browser()
    yield found
    found.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with LiveServer(tmp_path_factory.mktemp("server"), workers=2) as running:
        yield running
