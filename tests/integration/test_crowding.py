"""Test that many concurrent requests of one tenant leave the server to the others.

Before, each request held a database connection while it waited for a thread, until no thread was left
that could have released one: the server stood still for 30 s, and answered 500.
"""

import asyncio

import httpx
import pytest
from databases import ON_BOTH
from served_app import served
from until import turn

CONCURRENT = 80


def _with(key):
    return {"headers": {"Authorization": f"Bearer {key}"}}


def _signed_in(world, key):
    answer = world.client.post("/console/sign-in", data={"key": key}, follow_redirects=False)
    return {"headers": {"Cookie": answer.headers["set-cookie"].partition(";")[0]}}


async def _all_at_once(url, asks, others):
    """Send ``asks`` at once and then ``others``; return the answers to both."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
        flood = [asyncio.create_task(client.request(*ask[:2], **ask[2])) for ask in asks]
        await turn()
        answers = [await client.request(*ask[:2], **ask[2]) for ask in others]
        return await asyncio.gather(*flood), answers


def _flood(management, method, path, owner):
    """Send requests of a tenant at once, then those of another; check the answers to both."""
    flooding, quiet = management.new_tenant("flooding"), management.new_tenant("quiet")
    app = management.new_app(flooding)
    if owner == "session":
        more = _signed_in(management, flooding["api_key"])
    else:
        more = _with((app if owner == "app" else flooding)["api_key"])
    if method == "PATCH":
        more["json"] = {"name": "new"}
    asks = [(method, path.format(app=app["id"]), more)] * CONCURRENT
    others = [("GET", "/v1/apps", _with(quiet["api_key"]))] * 2
    with served(management.client) as url:
        flood, answers = asyncio.run(_all_at_once(url, asks, others))
    assert [each.status_code for each in answers] == [200, 200]
    found = {404} if path.startswith("/v1/responses") else {200}
    assert {each.status_code for each in flood} <= found | {429}
    rejected = [each for each in flood if each.status_code == 429]
    assert len(rejected) < CONCURRENT
    assert {each.headers["retry-after"] for each in rejected} <= {"1"}
    assert all("which is the limit" in each.text for each in rejected)


@ON_BOTH
def test_concurrent_writes_are_bounded_and_stop_nobody(management):
    _flood(management, "PATCH", "/v1/apps/{app}", "tenant")


@pytest.mark.parametrize(
    ("method", "path", "owner"),
    [
        ("GET", "/v1/usage", "app"),
        ("GET", "/v1/interactions", "app"),
        ("GET", "/v1/responses/resp_0", "app"),
        ("GET", "/console/usage", "session"),
    ],
)
def test_concurrent_requests_of_a_key_are_bounded_and_stop_nobody(management, method, path, owner):
    """The bound of each kind of endpoint; the pools of both databases are tested above."""
    _flood(management, method, path, owner)
