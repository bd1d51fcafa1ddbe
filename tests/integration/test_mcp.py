"""``fairserve mcp`` as assistants use it: the SDK's client, the real command, and a real server."""

import os
import sys
import time
from contextlib import asynccontextmanager

import pytest
from mcp import Client, StdioServerParameters
from processes import eventually, free_port
from served_app import served
from server_client import PROFILE
from virtual_cluster import make_call
from whole_server import WholeServer

from fairserve.platform.control.call_state import CallState
from fairserve.platform.server.admin_cli.client import AdminClient as ServerClient
from fairserve.platform.server.mcp_server.server import tool_server

ARGUMENTS = ("-m", "fairserve.platform.server.cli", "mcp")
TOOLS = {"overview", "flooding_clients", "explain_rejection", "tenant_usage"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield a server with two tenants.

    A call of the first one's user bob was rejected; the second one's user loud takes most of its share.
    """
    folder = tmp_path_factory.mktemp("data")
    with WholeServer(folder) as server:
        server.tenant, app = server.new_tenant_and_app("one")
        server.other, other = server.new_tenant_and_app("two")
        server.other_app = other
        limited = {"name": "limited", "profile": PROFILE, "contract": {"rpm_limit": 1}}
        limited = server.call(server.tenant["api_key"], "POST", "/v1/apps", limited)
        for key in (app["api_key"], other["api_key"], limited["api_key"]):
            server.chat(key, "ok", user="ann")
        body = {"model": "scripted", "messages": [{"role": "user", "content": "ok"}], "user": "bob"}
        rejected = server.request("POST", "/v1/chat/completions", limited["api_key"], json=body)
        assert rejected.status_code == 429
        server.rejected = rejected.headers["x-request-id"]
        for _ in range(8):
            server.chat(other["api_key"], "ok", user="loud")
        eventually(lambda: usage_of(server) == 12)
        with served(server.client) as server.url:
            yield server


def usage_of(server):
    report = server.call(server.admin_key, "GET", "/admin/usage")
    events = server.call(server.admin_key, "GET", "/admin/throttling/events")
    return report["sums"]["calls"] if events["total"] else 0


@asynccontextmanager
async def assistant(server, key):
    """Yield a client of the command, which has only the key and the address of the server."""
    environment = {"FAIRSERVE_API_KEY": key, "FAIRSERVE_URL": server.url}
    for name in ("PYTHONPATH", "PATH", "HOME"):
        if name in os.environ:
            environment[name] = os.environ[name]
    command = StdioServerParameters(command=sys.executable, args=list(ARGUMENTS), env=environment)
    async with Client(command) as client:
        yield client


async def use(client, tool, **arguments):
    """Return the structured answer of a tool that succeeds."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def error(client, tool, **arguments):
    """Return the text of a tool's error, without the SDK's prefix."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    return result.content[0].text.removeprefix(f"Error executing tool {tool}: ")


async def test_an_operator_reads_state_floods_rejections_and_usage(server):
    async with assistant(server, server.admin_key) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == TOOLS
        for tool in tools.values():
            assert tool.annotations.read_only_hint
            assert tool.output_schema["properties"]
            assert len(tool.description) > 50
        state = await use(client, "overview")
        assert (state["overloaded"], state["queued_calls"]) == (False, 0)
        assert [worker["state"] for worker in state["workers"]] == ["ready"]
        assert state["models"][0]["model"] == "scripted"
        assert state["last_minute"].keys() >= {"accepted", "rejected_by_reason"}
        quiet = await use(client, "flooding_clients", tenant=server.tenant["id"])
        assert quiet["clients"] == []
        latest = await use(client, "explain_rejection", user="bob")
        assert latest == await use(client, "explain_rejection", call_id=server.rejected)
        assert (latest["call_id"], latest["reason"]) == (server.rejected, "contract_rpm")
        assert latest["explanation"][0].startswith("The quota of this app is 1 calls within 60 s")
        usage = await use(client, "tenant_usage", group_by=["tenant"])
        calls = {row["tenant"]: (row["calls"], row["rejected"]) for row in usage["rows"]}
        assert calls == {server.tenant["id"]: (3, 1), server.other["id"]: (9, 0)}
        usage = await use(client, "tenant_usage", tenant=server.tenant["id"], group_by=["user"])
        assert {row["user"]: row["calls"] for row in usage["rows"]} == {"ann": 2, "bob": 1}
        usage = await use(client, "tenant_usage", group_by=["service_tier"])
        assert [row["service_tier"] for row in usage["rows"]] == ["default"]
        assert await error(client, "explain_rejection", call_id="call_none") == (
            "there is no such rejection"
        )


async def test_a_tenant_key_reads_its_own_data_only(server):
    async with assistant(server, server.other["api_key"]) as client:
        usage = await use(client, "tenant_usage")
        assert len(usage["rows"]) == 1
        assert usage["sums"]["calls"] == 9
        assert await error(client, "tenant_usage", tenant=server.tenant["id"]) == (
            "there is no such tenant"
        )
        assert await error(client, "explain_rejection") == "there is no such rejection"
        assert await error(client, "explain_rejection", call_id=server.rejected) == (
            "there is no such rejection"
        )
        assert (await use(client, "flooding_clients"))["clients"] == [], "nobody waits"
        call = make_call("w", tenant=server.other["id"], app=server.other_app["id"], user="ann")
        activity, now_s = server.platform.monitoring.activity, time.monotonic()
        waiting = CallState(call, "w", "", now_s, now_s)
        server.client.portal.call(activity.call_accepted, waiting, now_s)
        (loud,) = (await use(client, "flooding_clients"))["clients"]
        server.client.portal.call(activity.call_dropped, waiting)
        assert (loud["user"], loud["tenant_name"], loud["app_name"]) == (
            *("loud", "two-tenant", "two-app"),
        )
        assert loud["signs"] == ["takes 1.8 times its share"]
        assert loud["entitled_share"] == 0.5
        assert "this needs an admin key" in await error(client, "overview")
    async with assistant(server, server.tenant["api_key"]) as client:
        assert (await use(client, "explain_rejection"))["call_id"] == server.rejected
        assert (await use(client, "flooding_clients"))["clients"] == []
        assert await error(client, "flooding_clients", tenant=server.other["id"]) == (
            "there is no such tenant"
        )


def within(server, key, url=None):
    """Return a client of the tools within this process."""
    return Client(tool_server(ServerClient(url or server.url, key)))


async def test_wrong_arguments_keys_and_addresses_are_answered_with_the_cause(server):
    async with within(server, server.admin_key) as client:
        assert "less than or equal to 50" in await error(client, "tenant_usage", limit=51)
        assert "from is after to" in await error(
            client, "tenant_usage", first_day="2026-02-01", last_day="2026-01-01"
        )
    async with within(server, "sk-fs-a-" + "x" * 40) as client:
        text = await error(client, "overview")
        assert "key" in text
        assert "Traceback" not in text
    async with within(server, server.admin_key, f"http://127.0.0.1:{free_port()}") as client:
        assert "does not answer" in await error(client, "tenant_usage")
