"""A thousand concurrent agent runs of one app, and the runs that the platform takes them for.

    python tests/support/concurrent_runs.py

The calls pass through the shipped decision service and control in virtual time; a script answers in
place of workers. Runs of each kind are alike in what usually misleads: equal prompts, one trace, equal
ids. A *false merge* is a call in the run of another agent run. A *join* is a call, other than the first
of its agent run, that is in the run of an earlier one.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
from control_world import World
from until import turn

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.run_rules import DEFAULT_RUN_RULES
from fairserve.platform.control.messages import Grant, Release
from fairserve.platform.fleet.models import Models, ServedModel
from fairserve.platform.fleet.prompts.reader import Prompt
from fairserve.platform.serving.decision.check import CheckOptions
from fairserve.platform.serving.decision.request import CallRequest
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.tenancy.auth import Principal

APP = Principal("app", "t", "app", key_id="key", actor="sk-fs-x")


class Reader:
    exact = True


async def count(reader, tenant, max_tokens):
    return Prompt(np.zeros(4, np.uint32), 0)


def prompt(text):
    return {"role": "user", "content": text}


def answers(text, *tools):
    calls = [{"id": each, "function": {"name": "f", "arguments": "{}"}} for each in tools]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def result(tool, text):
    return {"role": "tool", "tool_call_id": tool, "content": text}


@dataclass
class Tally:
    """Counts of the calls of one kind."""

    runs: int = 0
    calls: int = 0
    joined: int = 0
    false_merges: int = 0

    @property
    def joinable(self):
        return self.calls - self.runs


@dataclass
class Traffic:
    """Agent runs of one app and how the platform groups their calls."""

    rules: tuple = DEFAULT_RUN_RULES
    seed: int = 1
    tallies: dict = field(default_factory=dict)
    owners: dict = field(default_factory=dict)
    """The agent run that each run of the platform belongs to."""
    rules_used: Counter = field(default_factory=Counter)

    async def drive(self, kinds, runs):
        """Run this many agents of all kinds at once."""
        self.random = random.Random(self.seed)
        self.world = World("fcfs", capacity=10**9, max_queued_calls=10**6)
        models = Models(lambda worker_name: 1)
        models.serve(ServedModel(("m",), "", 100, reader=Reader()))
        options = CheckOptions(run_rules=self.rules)
        self.service = DecisionService(None, self.world.control, models, options)
        agents = [Agent(self, kind, number) for number in range(runs) for kind in kinds]
        agents = agents[:runs]
        self.random.shuffle(agents)
        try:
            await asyncio.gather(*(agent.run() for agent in agents))
        finally:
            await self.world.control.close()
        return self.tallies

    async def pause(self):
        """Let others proceed for a random while."""
        for _ in range(self.random.randrange(60)):
            await turn()


class Agent:
    """One agent run; ``number`` is its place among those of its kind."""

    def __init__(self, traffic, kind, number):
        self.traffic, self.kind, self.number = traffic, kind, number
        self.name = f"{kind.__name__} {number}"
        self.seen = set()
        self.spans = 0

    async def run(self):
        self._tally().runs += 1
        await self.traffic.pause()
        await self.kind(self)

    def _tally(self):
        return self.traffic.tallies.setdefault(self.kind.__name__.replace("_", " "), Tally())

    def trace(self, number):
        self.spans += 1
        return {"traceparent": f"00-{number + 1:032x}-{self.number * 100 + self.spans:016x}-01"}

    async def ask(self, messages, answer, *, user="u", headers=None, **more):
        """Make a call and return the conversation with its answer."""
        traffic, tally = self.traffic, self._tally()
        request = CallRequest(
            APP,
            "/v1/chat/completions",
            "m",
            "messages",
            count,
            user=user,
            headers=headers or {},
            messages=messages,
            **more,
        )
        checked = await traffic.service.check(request)
        grant = await traffic.service.place(checked)
        assert isinstance(grant, Grant), grant.error
        await traffic.pause()
        keys = () if checked.conversation is None else checked.conversation.answered([answer])
        used = TokenUsage(4, 0, 0, 2)
        await traffic.service.control.release(
            Release(grant.call_id, "completed", used, continuation_keys=keys)
        )
        run = checked.run_id
        owner = traffic.owners.setdefault(run, self.name)
        tally.calls += 1
        tally.false_merges += owner != self.name
        tally.joined += run in self.seen
        self.seen.add(run)
        traffic.rules_used[checked.call.run_rule] += 1
        traffic.world.now_s += 0.001
        await traffic.pause()
        return [*messages, answer]

    async def turns(self, first, *replies, **more):
        """Hold a conversation of several turns."""
        messages = [prompt(first)]
        for reply in replies:
            messages = await self.ask(messages, answers(reply), **more)
            messages = [*messages, prompt("go on")]


# --- kinds of agent runs ----------------------------------------------------------------------------


async def equal_prompts_and_answers(agent):
    await agent.turns("What is 1 + 1?", "2", "2", "2")


async def equal_prompts_and_answers_in_own_traces(agent):
    messages = [prompt("What is 2 + 2?")]
    for _ in range(3):
        messages = await agent.ask(messages, answers("4"), headers=agent.trace(agent.number))
        messages = [*messages, prompt("go on")]


async def equal_prompts_and_own_answers(agent):
    await agent.turns("Invent a name.", agent.name, "Well", "Done")


async def one_trace_over_all_runs(agent):
    messages = [prompt(agent.name)]
    for step in range(3):
        messages = await agent.ask(messages, answers(f"{step}"), headers=agent.trace(10_000))
        messages = [*messages, prompt("go on")]


async def one_trace_and_equal_prompts_and_answers(agent):
    messages = [prompt("What is 3 + 3?")]
    for _ in range(3):
        messages = await agent.ask(messages, answers("6"), headers=agent.trace(20_000))
        messages = [*messages, prompt("go on")]


async def one_session_id_of_many_users(agent):
    session = {"metadata": {"session_id": "default"}, "user": f"user {agent.number}"}
    await agent.turns("Hello", "Hi", "Yes", "Bye", **session)


async def own_session_id_and_new_prompts(agent):
    for step in range(3):
        session = {"metadata": {"thread_id": agent.name}}
        await agent.ask([prompt(f"step {step}")], answers("done"), **session)


async def one_prompt_cache_key(agent):
    await agent.turns(agent.name, "1", "2", "3", prompt_cache_key="my-app")


async def parallel_branches(agent):
    """An answer requests two tools; both results come back at once, and then a summary."""
    tools = f"{agent.name} a", f"{agent.name} b"
    begun = await agent.ask([prompt("Compare two cities")], answers(None, *tools))
    both = [*begun, *(result(tool, "sunny") for tool in tools)]
    branches = [[*both, prompt(f"as a {kind}")] for kind in ("table", "poem")]
    ended = await asyncio.gather(*(agent.ask(each, answers("text")) for each in branches))
    await agent.ask([*ended[0], prompt("shorter")], answers("short"))


async def forks(agent):
    begun = await agent.ask([prompt(f"Draft for {agent.name}")], answers("a draft"))
    await asyncio.gather(
        *(agent.ask([*begun, prompt(f"variant {n}")], answers(f"text {n}")) for n in range(3))
    )


async def equal_examples_in_the_prompt(agent):
    examples = [prompt("red"), answers("colour"), prompt("dog"), answers("animal")]
    begun = await agent.ask([*examples, prompt(agent.name)], answers("thing"))
    await agent.ask([*begun, prompt("sure?")], answers("yes"))


async def sub_agents_in_the_trace_of_their_run(agent):
    trace = 30_000 + agent.number
    plan = await agent.ask(
        [prompt(f"Plan {agent.name}")], answers("a plan"), headers=agent.trace(trace)
    )
    await asyncio.gather(
        *(
            agent.ask([prompt(f"Worker {n}")], answers("done"), headers=agent.trace(trace))
            for n in range(2)
        )
    )
    await agent.ask([*plan, prompt("sum up")], answers("summary"), headers=agent.trace(trace))


async def rewritten_history(agent):
    messages = await agent.ask([prompt(agent.name)], answers("a long answer"))
    shortened = [messages[0], answers("an answer"), prompt("go on")]
    await agent.ask(shortened, answers("more"))


async def header_of_another_tool(agent):
    await agent.turns("Hello", "Hi", "Bye", headers={"x-litellm-trace-id": agent.name})


KINDS = [value for name, value in list(globals().items()) if asyncio.iscoroutinefunction(value)]
KINDS.remove(count)


def main():
    """Print the table, with the default rules and with all of them."""
    for title, rules in (
        ("default", DEFAULT_RUN_RULES),
        ("with whole_trace", (*DEFAULT_RUN_RULES, "whole_trace")),
    ):
        traffic = Traffic(rules)
        tallies = asyncio.run(traffic.drive(KINDS, 1000))
        print(f"{title}: {dict(traffic.rules_used)}")
        total = Tally()
        for kind in KINDS:
            each = tallies[kind.__name__.replace("_", " ")]
            print(_row(kind.__name__.replace("_", " "), each))
            total = replace(total, **{k: getattr(total, k) + getattr(each, k) for k in vars(total)})
        print(_row("all", total))


def _row(name, each):
    return (
        f"| {name} | {each.runs} | {each.calls} | {each.joined} of {each.joinable}"
        f" | {each.false_merges} |"
    )


if __name__ == "__main__":
    main()
