"""A real Chromium records the behaviour of console pages: errors, requests, accessibility."""

import os
import shutil
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

WIDE, NARROW = (1440, 1000), (390, 844)
DEADLINE_MS = 20_000
expect.set_options(timeout=DEADLINE_MS)


def _missing(reason):
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


class Browser:
    """One Chromium for several tests; each test has its own visits."""

    def __init__(self):
        names = ("chromium-headless-shell", "chromium", "chromium-browser")
        program = next(filter(None, map(shutil.which, names)), None)
        if program is None:
            _missing("no chromium is installed: apt-get install chromium-headless-shell")
        self._playwright = sync_playwright().start()
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        self._browser = self._playwright.chromium.launch(executable_path=program, args=flags)
        self.axe = Axe()

    def close(self):
        self._browser.close()
        self._playwright.stop()

    def visit(self, url, *, dark=False, size=WIDE, scripts=True, other=None, zone="UTC"):
        """Return a visit with a separate browser context that opens only this server, and ``other``.

        ``zone`` is the time zone of the reader.
        """
        return Visit(self, self._browser, url, dark, size, scripts, other, zone)


class Visit:
    """A browser context with one page. Forbidden events are collected in ``problems``."""

    def __init__(self, browser, chromium, url, dark, size, scripts, other, zone):
        self.url = url
        self._servers = {urlsplit(each).netloc for each in (url, other) if each}
        self.problems = []
        self._axe = browser.axe
        self.context = chromium.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
            reduced_motion="reduce",
            timezone_id=zone,
        )
        self.context.set_default_timeout(DEADLINE_MS)
        self.page = self.context.new_page()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        self.page.on("request", self._on_request)
        self.page.on("dialog", lambda dialog: dialog.accept())

    def _on_console(self, message):
        expected = "Failed to load resource" in message.text  # a response that the test checks
        if message.type in ("error", "warning") and not expected:
            self.problems.append(f"console: {message.text}")

    def _on_request(self, request):
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https") and parts.netloc not in self._servers:
            self.problems.append(f"request: {request.url}")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.context.close()
        if kind is None:
            assert not self.problems, self.problems

    def open(self, path):
        """Open a page of the console; return its status."""
        return self.page.goto(self.url + path, wait_until="load").status

    def sign_in(self, key):
        """Sign in with a key, without loading a page: other tests cover the sign-in form."""
        answer = self.context.request.post(
            f"{self.url}/console/sign-in", form={"key": key}, max_redirects=0
        )
        assert answer.status == 303, answer.text()
        return self

    def confirm(self, verb):
        """Open the dialog of an action, and confirm it."""
        self.page.get_by_role("button", name=verb, exact=True).click()
        self.page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()

    def text(self):
        """Return the text of the whole page."""
        return self.page.locator("body").inner_text()

    def faults(self):
        """Return the serious and critical findings of axe-core."""
        found = self._axe.run(self.page, options={"resultTypes": ["violations"]}).response
        return [
            (each["id"], [node["html"][:160] for node in each["nodes"]][:5])
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]

    def overflow(self):
        """Return the number of pixels by which the page is wider than its window."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
