"""Parents of calls that name none are inferred: agents, tools, sub-agents and branches."""

from dataclasses import dataclass, field
from functools import partial

import pytest
from counted_lines import lines_of
from virtual_cluster import make_call

from fairserve.interactions.profiles.profile import DEFAULT_PROFILE as PROFILE
from fairserve.interactions.tracking import run
from fairserve.interactions.tracking.conversation import Conversation
from fairserve.interactions.tracking.run import MOST_PARENTS, SINCE_CALLS
from fairserve.interactions.tracking.tracker import Tracker


def user(text):
    return {"role": "user", "content": text}


def assistant_message(text=None, *tools):
    calls = [{"id": each, "function": {"name": "f", "arguments": "{}"}} for each in tools]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def result(tool, text="done"):
    return {"role": "tool", "tool_call_id": tool, "content": text}


@dataclass
class Traffic:
    """Calls that begin with messages and end with an answer, identified by name."""

    tracker: Tracker = field(default_factory=Tracker)
    answers_known: bool = True
    stages: dict = field(default_factory=dict)
    parents: dict = field(default_factory=dict)
    live: dict = field(default_factory=dict)

    def begin(self, name, *messages, run="R"):
        conversation = Conversation(messages)
        call = make_call(name, run=run)
        call.history, call.tool_results = conversation.history, conversation.tool_results
        call.answered_prompts = conversation.answered_prompts
        attachment = self.tracker.attach(call, PROFILE, 0.0)
        self.tracker.accept(call, attachment, 0.0)
        self.stages[name] = attachment.stage
        self.parents[name] = set(self.tracker.parent_ids(call, attachment))
        self.live[name] = call, conversation

    def end(self, name, answer=None, outcome="completed"):
        call, conversation = self.live.pop(name)
        answers = [answer or assistant_message(f"answer of {name}")] if self.answers_known else []
        keys = conversation.answered(answers)
        self.tracker.finish(call, outcome, 1, PROFILE, 0.0, continuation_keys=keys)

    def call(self, name, *messages, answer=None):
        self.begin(name, *messages)
        self.end(name, answer)


@pytest.fixture(params=[True, False], ids=["answers known", "prompts alone"])
def traffic(request):
    return Traffic(answers_known=request.param)


def test_two_parallel_agents_are_two_chains(traffic):
    """The agents alternate; by time alone each would follow the other."""
    histories = {agent: [user(f"task of {agent}")] for agent in "ab"}
    for agent in "ab":
        traffic.begin(f"{agent}1", *histories[agent])
    for turn in (1, 2, 3):
        for agent in "ab":
            answer = assistant_message(f"{agent} says {turn}")
            traffic.end(f"{agent}{turn}", answer)
            histories[agent] += [answer, user("go on")]
        for agent in "ab":
            traffic.begin(f"{agent}{turn + 1}", *histories[agent])
    for agent in "ab":
        assert [traffic.parents[f"{agent}{n}"] for n in (1, 2, 3, 4)] == [
            set(),
            {f"{agent}1"},
            {f"{agent}2"},
            {f"{agent}3"},
        ]
    assert traffic.stages["a4"] == traffic.stages["b4"] == 4


def test_sub_agents_are_between_question_and_answer(traffic):
    asks = assistant_message(None, "t1", "t2")
    traffic.call("boss", user("task"), answer=asks)
    traffic.begin("left", user("one half"))
    traffic.begin("right", user("other half"))
    traffic.end("left")
    traffic.end("right", assistant_message("half done"))
    traffic.call(
        "right 2", user("other half"), assistant_message("half done"), user("and the rest?")
    )
    traffic.call("boss 2", user("task"), asks, result("t1"), result("t2"))
    assert traffic.parents == {
        "boss": set(),
        "left": {"boss"},
        "right": {"boss"},
        "right 2": {"right"},
        "boss 2": {"left", "right 2"},
    }
    assert traffic.stages["boss 2"] == 4


def test_a_supervisor_depends_only_on_its_own_agents(traffic):
    """A running sub-agent is no parent, and another agent's work is independent."""
    asks = assistant_message(None, "t1")
    traffic.begin("boss", user("task"))
    traffic.begin("other", user("something else"))
    traffic.end("other")
    traffic.end("boss", asks)
    traffic.begin("slow", user("sub-task"))
    traffic.call(
        "other 2", user("something else"), assistant_message("answer of other"), user("more")
    )
    traffic.call("boss 2", user("task"), asks, result("t1"))
    assert traffic.parents["slow"] == {"boss", "other"}, "time alone cannot decide"
    assert traffic.parents["other 2"] == {"other"}
    assert traffic.parents["boss 2"] == {"boss"}


def test_tool_results_follow_their_request_despite_a_cut_history():
    traffic = Traffic()
    traffic.begin("a", user("task"))
    traffic.begin("b", user("other"))
    traffic.end("a", assistant_message("first", "t1"))
    traffic.end("b", assistant_message("second", "t2"))
    traffic.begin("a 2", user("in short: task"), assistant_message("summary", "t1"), result("t1"))
    traffic.begin("b 2", user("in short: other"), assistant_message("summary", "t2"), result("t2"))
    traffic.begin("both", result("t1"), result("t2"))
    assert traffic.parents["a 2"] == {"a"}
    assert traffic.parents["b 2"] == {"b"}
    assert traffic.parents["both"] == {"a", "b"}


def test_of_known_and_unknown_answers_the_last_one_is_continued(traffic):
    """The branches' first call and the branches are known in different ways."""
    traffic.call("root", user("task"), answer=assistant_message("start"))
    traffic.answers_known = not traffic.answers_known
    opening = [user("task"), assistant_message("start")]
    branches = {name: [*opening, user(name)] for name in "xy"}
    for name, messages in branches.items():
        traffic.begin(name, *messages)
    for name in branches:
        traffic.end(name)
    for name, messages in branches.items():
        traffic.begin(f"{name} 2", *messages, assistant_message(f"answer of {name}"), user("more"))
        assert traffic.parents[f"{name} 2"] == {name}


def test_a_conversation_may_branch_and_be_retried(traffic):
    traffic.call("root", user("task"), answer=assistant_message("start"))
    opening = [user("task"), assistant_message("start")]
    for name in ("x", "y"):
        traffic.begin(name, *opening, user(name))
    for name in ("x", "y"):
        traffic.end(name)
    traffic.call("z", *opening, user("z"))
    assert traffic.parents["x"] == traffic.parents["y"] == {"root"}
    # Both attempts had ended: the third is inferred to follow both.
    assert traffic.parents["z"] == {"x", "y"}


def test_the_latest_of_equal_conversations_is_continued(traffic):
    for name in ("first", "second"):
        traffic.call(name, user("task"), answer=assistant_message("the same"))
    traffic.begin("next", user("task"), assistant_message("the same"), user("go on"))
    assert traffic.parents["next"] == {"second"}


def test_two_runs_are_never_merged(traffic):
    traffic.call("a", user("task"), answer=assistant_message("start", "t1"))
    traffic.begin("b", user("task"), assistant_message("start", "t1"), result("t1"), run="other")
    assert (traffic.parents["b"], traffic.stages["b"]) == (set(), 1)


def test_without_inference_only_named_parents_count():
    traffic = Traffic(Tracker(infer=False))
    traffic.call("a", user("task"), answer=assistant_message("start"))
    traffic.begin("b", user("task"), assistant_message("start"), user("go on"))
    assert (traffic.parents["b"], traffic.stages["b"]) == (set(), 1)
    call = make_call("c", run="R", parents=("a",))
    assert traffic.tracker.attach(call, PROFILE, 0.0).stage == 2


def test_inferred_parents_are_bounded_and_the_stage_is_exact(traffic):
    for number in range(2 * MOST_PARENTS):
        traffic.begin(f"c{number}", user(str(number)))
    traffic.call("deep", user("deep"))
    traffic.call("deeper", user("deeper"))
    for number in range(2 * MOST_PARENTS):
        traffic.end(f"c{number}")
    traffic.begin("last", user("last"))
    assert len(traffic.parents["last"]) == MOST_PARENTS
    assert traffic.stages["last"] == 3


def test_results_of_many_tools_have_a_bounded_number_of_parents():
    traffic, tools = Traffic(), range(2 * MOST_PARENTS)
    for number in tools:
        traffic.begin(f"c{number}", user(str(number)))
    for number in tools:
        traffic.end(f"c{number}", assistant_message(None, f"t{number}"))
    traffic.begin("last", user("other"), *(result(f"t{number}") for number in tools))
    assert traffic.parents["last"] == {f"c{number}" for number in tools[MOST_PARENTS:]}


@pytest.mark.parametrize("role", ["assistant", "tool"])
def test_a_conversation_of_any_length_is_placed_at_the_same_cost(role):
    """A client chooses how many messages it sends, and each could be a scan of the run's keys."""
    message = assistant_message if role == "assistant" else lambda each: result(f"t{each}")
    traffic, lines = Traffic(), {}
    traffic.call("a", user("task"), answer=assistant_message("0", "t0"))
    for number in (20, 500):
        messages = (message(str(each)) for each in reversed(range(number)))
        conversation = Conversation([user("task"), *messages])
        call = make_call("next", run="R")
        call.history, call.tool_results = conversation.history, conversation.tool_results
        call.answered_prompts = conversation.answered_prompts
        lines[number] = lines_of(partial(traffic.tracker.attach, call, PROFILE, 0.0))
    assert lines[500] == lines[20]


def test_a_run_keeps_the_keys_of_its_latest_calls(monkeypatch):
    """A call may have 128 answers, and each would be searched with each later call."""
    monkeypatch.setattr(run, "MOST_KEYS", 4)
    traffic = Traffic()
    for name in "abc":
        traffic.begin(name, user(name))
    for name in "abc":
        traffic.end(name, assistant_message(name, f"tool of {name}"))
    for name, parents in (("a", set("abc")), ("b", {"b"}), ("c", {"c"})):
        traffic.begin(f"after {name}", user("other"), result(f"tool of {name}"))
        assert traffic.parents[f"after {name}"] == parents


def test_an_old_conversation_can_be_continued(traffic):
    traffic.call("old", user("task"), answer=assistant_message("start"))
    for number in range(SINCE_CALLS + 1):
        traffic.call(f"c{number}", user(str(number)))
    traffic.begin("next", user("task"), assistant_message("start"), user("go on"))
    assert traffic.parents["next"] == {"old"}
