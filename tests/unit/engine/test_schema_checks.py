"""Schemas of clients are checked in a child process: limits, turns, and its replacement."""

import asyncio
import json
import os
import signal

import pytest
from until import turn

from fairserve.engine.torch import schema_checks
from fairserve.engine.torch.json_mode import token_table
from fairserve.engine.torch.schema_checks import (
    ChecksFullError,
    SchemaChecks,
    UnusableSchemaError,
)

FINE = '{"type":"boolean"}'
MINUTES = json.dumps(
    {"allOf": [{"type": "string", "pattern": f"a.{{{length}}}b"} for length in range(40)]}
)
"""Schema that takes minutes to compile: each pattern doubles the states of their intersection."""


@pytest.fixture(scope="module")
def table(byte_level):
    return token_table(byte_level, 300, {256})


@pytest.fixture
async def checks(table):
    checks = SchemaChecks(table, cpu_s=0.2)
    yield checks
    await checks.close()


async def test_a_slow_schema_is_aborted_and_the_next_one_checked(checks):
    with pytest.raises(UnusableSchemaError, match=r"over 0\.2 s of processor time"):
        await checks.check("a", MINUTES)
    await checks.check("a", FINE)


async def test_a_schema_needs_less_stack_than_a_thread_has(checks):
    rules = [f"r{number}: r{number + 1}" for number in range(1000)]
    with pytest.raises(UnusableSchemaError, match="nested too deeply"):
        await checks.check("a", "\n".join(["start: r0", *rules, 'r1000: "a"']), "grammar")
    await checks.check("a", "\n".join(["start: r900", *rules[900:], 'r1000: "a"']), "grammar")


async def test_a_crashing_child_fails_only_its_schema(checks, monkeypatch):
    await checks.check("a", FINE)
    os.kill(checks._process.pid, signal.SIGSEGV)
    await checks._process.wait()
    with pytest.raises(UnusableSchemaError, match="too much memory"):
        await checks.check("a", FINE)
    await checks.check("a", FINE)
    await checks.close()
    monkeypatch.setattr(schema_checks, "_MODULE", "fairserve.engine.torch.no_such_module")
    with pytest.raises(ChecksFullError, match="cannot be checked"):
        await checks.check("a", FINE)


async def test_clients_take_turns_and_are_bounded(checks):
    ended = []

    async def check(client_id, schema):
        try:
            await checks.check(client_id, schema)
        except UnusableSchemaError:
            ended.append(client_id)

    await checks.check("quiet", FINE)  # the child is running
    own = schema_checks.MAX_WAITING_PER_CLIENT
    async with asyncio.TaskGroup() as group:
        for number in range(own):
            group.create_task(check("busy", json.dumps({"type": f"no type {number}"})))
        await turn()
        with pytest.raises(ChecksFullError, match=f"{own} schemas of this client"):
            await checks.check("busy", FINE)
        group.create_task(check("quiet", '{"type":"no type"}'))
    assert sorted(ended) == ["busy"] * own + ["quiet"]
    assert ended.index("quiet") <= 2


async def test_waiting_schemas_are_bounded_in_total(checks, monkeypatch):
    monkeypatch.setattr(schema_checks, "MAX_WAITING", 2)
    waiting = [asyncio.create_task(checks.check(client, FINE)) for client in "ab"]
    await turn()
    with pytest.raises(ChecksFullError, match="allowed: 2"):
        await checks.check("c", FINE)
    await asyncio.gather(*waiting)
    await checks.check("c", FINE)


async def test_closing_ends_the_child_and_waiting_checks(checks):
    await checks.check("a", FINE)
    child = checks._process
    waiting = [asyncio.create_task(checks.check(client, MINUTES)) for client in "ab"]
    await turn()
    await checks.close()
    for check in waiting:
        with pytest.raises((asyncio.CancelledError, ChecksFullError)):
            await check
    assert child.returncode is not None
