"""An empty installation leads to its first call by the commands of a page, which tick themselves off."""

import json
import subprocess

import pytest
from page_server import PageServer


@pytest.fixture
def server(tmp_path):
    with PageServer(tmp_path) as running:
        yield running


def test_the_commands_of_the_first_steps_lead_to_a_call(operator, server):
    page = operator.page
    assert operator.page.goto(server.url).ok
    page.wait_for_url("**/console/overview")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    keys = {"ADMIN_KEY": server.admin_key}
    for number, key in ((1, "TENANT_KEY"), (2, "APP_KEY"), (3, None)):
        assert not operator.faults()
        assert operator.overflow() == 0
        page.get_by_role("button", name=f"Copy the command of step {number}").click()
        page.get_by_text("Copied").wait_for()
        command = page.evaluate("navigator.clipboard.readText()")
        done = subprocess.run(
            ["bash", "-c", f"{command} --silent --fail"], env=keys, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        if key is not None:
            keys[key] = answer["api_key"]
            server.sample()
            page.locator(f"#step-{number}").wait_for(state="detached")
    assert answer["choices"]
    server.wait_for("/admin/usage", server.admin_key, lambda found: found["sums"]["calls"])
    server.sample()
    page.get_by_text("First steps").wait_for(state="detached")
