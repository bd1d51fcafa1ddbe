"""Fixtures for one Chromium for the tests of this folder, and a server for each of its files.

While Playwright runs, it owns the event loop of the thread, and no asynchronous test can run: so
Chromium ends with the last test of the folder in this process. A server starts quickly; with its own
one, a file is independent of what other files left behind.
"""

import pytest
from chromium import Browser
from page_server import PageServer


@pytest.fixture(scope="package")
def browser():
    found = Browser()
    yield found
    found.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with PageServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def operator(browser, server):
    """Return a page of an operator who has signed in with the admin key."""
    with browser.visit(server.url) as visit:
        yield visit.sign_in(server.admin_key)
