"""One Chromium for the tests of this folder, and a server for each of its files.

While Playwright runs, its event loop is the thread's, and no asynchronous test can be: so Chromium ends
with the last test of the folder that this process runs. A server starts in a moment; with one of its
own, a file needs no regard for what others left behind.
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
    """A page of an operator who has signed in with the admin key."""
    with browser.visit(server.url) as visit:
        yield visit.sign_in(server.admin_key)
