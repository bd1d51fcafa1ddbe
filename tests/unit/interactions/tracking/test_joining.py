"""Calls whose client names no run join one by their clues, and never one of two that fit."""

import json
from dataclasses import dataclass, field

import pytest
from virtual_cluster import make_call

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.run_rules import RUN_RULES
from fairserve.interactions.tracking.conversation import Conversation
from fairserve.interactions.tracking.identity import OtherSources, identify
from fairserve.interactions.tracking.run_index import GoneAnswers, RunIndex
from fairserve.interactions.tracking.tracker import Tracker, TrackerLimits

PROFILE = AppProfile((StageProfile(100, 0, 10),), calls_per_interaction=3, idle_timeout_s=100)
ASK = {"role": "user", "content": "question"}
ANSWER = {"role": "assistant", "content": "answer"}
MORE = {"role": "user", "content": "more"}


def trace(number):
    return {"traceparent": f"00-{number:032x}-{1:016x}-01"}


@dataclass
class Client:
    """Makes calls of one app, each in a run of its own unless the tracker finds one."""

    answers_known: bool = True
    tracker: Tracker = field(default_factory=Tracker)
    now_s: float = 0.0
    made: int = 0
    immune: list = field(default_factory=list)

    def begin(self, *messages, headers=None, rules=None, user="u", name=None, **sources):
        self.made += 1
        metadata = sources.pop("metadata", None)
        rules = RUN_RULES[:-1] if rules is None else rules
        found = identify(
            headers or {}, metadata, set(rules) - {"whole_trace"}, OtherSources(**sources)
        )
        conversation = Conversation(messages)
        run = f"app/{found.run_id or f'run{self.made}'}"
        call = make_call(f"{run}/{name or self.made}", run=run, user=user)
        call.single = found.run_id is None
        call.history, call.tool_results = conversation.history, conversation.tool_results
        call.answered_prompts = conversation.answered_prompts
        call.clues, call.answer_scopes = found.clues, found.answer_scopes
        call.run_rule = found.rule or ""
        self.tracker.join(call, self.now_s)
        attachment = self.tracker.attach(call, PROFILE, self.now_s)
        self.tracker.accept(call, attachment, self.now_s)
        self.immune.append(attachment.immune)
        return call, conversation

    def end(self, begun, answer=ANSWER, outcome="completed"):
        call, conversation = begun
        answers = [answer] if self.answers_known else []
        keys = conversation.answered(answers) if outcome == "completed" else ()
        return self.tracker.finish(call, outcome, 1, PROFILE, self.now_s, continuation_keys=keys)

    def tick(self, later_s):
        """Let time pass; the tracker looks for what is over."""
        self.now_s += later_s
        self.tracker.expire(lambda app: PROFILE, self.now_s)

    def call(self, *messages, **more):
        begun = self.begin(*messages, **more)
        self.end(begun)
        return begun[0].interaction_id


@pytest.fixture(params=[True, False], ids=["answers known", "prompts alone"])
def client(request):
    return Client(answers_known=request.param)


def test_a_conversation_continues_in_one_run_that_completes_each_time(client):
    first = client.begin(ASK)
    assert client.end(first).state == "complete"
    second = client.begin(ASK, ANSWER, MORE)
    assert second[0].interaction_id == first[0].interaction_id
    assert (second[0].run_rule, second[0].parents) == ("continued_conversation", None)
    end = client.end(second)
    assert (end.state, end.calls, end.tokens) == ("complete", 2, 2)
    assert len(client.tracker) == 0


def test_parallel_branches_of_one_conversation_join_it(client):
    run = client.call(ASK)
    branches = [client.begin(ASK, ANSWER, {**MORE, "content": f"branch {n}"}) for n in range(3)]
    assert {call.interaction_id for call, _ in branches} == {run}
    ends = [client.end(branch) for branch in branches]
    assert [end and end.calls for end in ends] == [None, None, 4]


def test_two_runs_with_the_same_conversation_are_never_joined(client):
    """Also once one of them has ended: its late client is not taken for the other run's."""
    runs = {client.call(ASK), client.call(ASK)}
    assert len(runs) == 2
    assert client.call(ASK, ANSWER, MORE) not in runs
    client.now_s = 500
    renewed = client.call(ASK)
    client.now_s = 900  # only the last run is left
    assert client.call(ASK, ANSWER, MORE) not in {*runs, renewed}


@pytest.mark.parametrize(("later_s", "known"), [(86_000, True), (87_000, False)])
def test_a_run_that_is_gone_is_known_by_its_answers_for_a_day(client, later_s, known):
    client.call(ASK)
    client.tick(2000)
    assert client.tracker.snapshot(client.now_s)["index"]["runs"] == [], "only hashes are left"
    client.tick(later_s)
    other = client.call(ASK)
    assert (client.call(ASK, ANSWER, MORE) != other) == known


def test_a_run_is_found_by_its_clues_as_long_as_it_lives(client):
    own, session = {"x-interaction-id": "a"}, {"session_id": "s"}
    named = client.call(ASK, headers=own)
    other = client.call(MORE, metadata=session)
    for _ in range(40):
        client.tick(90)
        client.call({**ASK, "content": "another question"}, headers=own)
        assert client.call(MORE, metadata=session) == other
    assert client.call(ASK, ANSWER, MORE) == named


def test_the_trace_separates_equal_conversations_and_joins_none(client):
    one, other = client.call(ASK, headers=trace(1)), client.call(ASK, headers=trace(2))
    assert client.call(ASK, ANSWER, MORE, headers=trace(1)) == one
    assert client.call(ASK, ANSWER, MORE, headers=trace(2)) == other
    assert client.call(ASK, headers=trace(1)) not in (one, other)
    assert client.call(ASK, ANSWER, MORE, headers=trace(1)) not in (one, other)


def test_ids_of_a_session_are_one_run_of_their_user(client):
    session = {"metadata": {"session_id": "s"}}
    run = client.call(ASK, **session)
    assert client.call(MORE, **session) == run
    several = [client.begin(MORE, metadata={"session_id": "new"}) for _ in range(3)]
    assert len({call.interaction_id for call, _ in several}) == 1, "all begin at once"
    assert client.call(MORE, user="v", **session) != run
    assert client.call(MORE, metadata={"session_id": "t"}) != run
    assert client.call(MORE, conversation="s") != run
    client.now_s = 2000  # the run is forgotten: the id names a new one
    renewed = client.call(ASK, **session)
    assert renewed != run
    assert client.call(MORE, **session) == renewed


def test_a_stored_response_names_its_run_while_it_lives(client):
    run = client.call(ASK)
    assert client.call(MORE, continued_run=run) == run
    assert client.call(MORE, continued_run=run, user="v") != run
    client.now_s = 2000
    assert client.call(MORE, continued_run=run) != run


def test_a_name_decides_before_the_conversation(client):
    run = client.call(ASK)
    assert client.call(ASK, ANSWER, MORE, metadata={"session_id": "new"}) != run


def test_continuing_a_conversation_is_no_way_around_the_limit_of_a_run(client):
    """Its run has the immunity of any other: up to twice the usual calls."""
    said = [ASK]
    for _ in range(8):
        client.call(*said)
        said += [ANSWER, MORE]
    assert client.immune == [False, *[True] * 5, False, False]


def test_only_rules_that_are_on_join(client):
    run = client.call(ASK)
    assert client.call(ASK, ANSWER, MORE, rules=()) != run
    unseen = client.call(MORE, rules=())
    assert client.call(MORE, ANSWER, ASK) != unseen
    key = {"prompt_cache_key": "k"}
    assert client.call(ASK, **key) != client.call(ASK, **key)
    on = {**key, "rules": RUN_RULES}
    assert client.call(ASK, **on) == client.call(MORE, **on)


def test_a_run_that_cannot_take_the_call_is_not_joined(client):
    """Its client closed it, it has a call of this id, or it is full: the client never named it."""
    client.tracker = Tracker(TrackerLimits(calls_per_run=2))
    named = {"headers": {"x-interaction-id": "named"}}
    assert client.call(ASK, **named) == "app/named"
    client.tracker.close("app/named", cancel=False)
    assert client.call(ASK, ANSWER, MORE) != "app/named"
    other = {**ASK, "content": "other"}
    run = client.call(other, name="same")
    assert client.call(other, ANSWER, MORE, name="same") != run
    assert client.call(other, ANSWER, MORE) == run
    assert client.call(other, ANSWER, MORE) != run


def test_a_call_without_a_name_joins_a_named_run(client):
    named = {"headers": {"x-interaction-id": "named"}}
    client.call(ASK, **named)
    call, _ = client.begin(ASK, ANSWER, MORE, name="c")
    assert (call.interaction_id, call.call_id) == ("app/named", "app/named/c")


def test_what_calls_find_survives_a_snapshot(client):
    session = {"metadata": {"session_id": "s"}}
    runs = client.call(ASK), client.call(MORE, **session)
    state = json.loads(json.dumps(client.tracker.snapshot(0.0)))
    client.tracker = Tracker()
    client.tracker.restore(state, 50.0)
    assert json.loads(json.dumps(client.tracker.snapshot(50.0))) == state
    client.now_s = 50.0
    assert (client.call(ASK, ANSWER, MORE), client.call(ASK, **session)) == runs


def test_the_index_and_the_ended_runs_are_bounded(client):
    limits = TrackerLimits(continuable_runs=4, index_entries=4)
    client.tracker = Tracker(limits)
    for number in range(20):
        client.call({**ASK, "content": str(number)})
    state = client.tracker.snapshot(0.0)
    assert (len(state["continuable"]), len(state["index"]["runs"])) == (4, 4)
    client.tick(2000)
    state = client.tracker.snapshot(client.now_s)
    assert (state["continuable"], state["index"]["runs"]) == ([], [])
    assert len(state["index"]["gone"]) == 4


def test_an_answer_of_several_runs_names_none():
    index, owner = RunIndex(10), ("t", "app", "u")
    index.answer(owner, 0, 7, "a", 0.0)
    index.answer(owner, 0, 7, "a", 0.0)
    assert index.answered(owner, 0, 7) == "a"
    assert index.answered(("t", "app", "v"), 0, 7) is None
    index.answer(owner, 0, 7, "b", 0.0)
    index.answer(owner, 0, 7, "b", 0.0)
    assert index.answered(owner, 0, 7) is None
    index.name(owner, 7, "a", 0.0)
    index.name(owner, 7, "b", 0.0)
    assert index.named(owner, 7) == "b"


def test_one_tick_looks_at_a_bounded_number_of_entries():
    index, owner = RunIndex(1000), ("t", "app", "u")
    for number in range(1000):
        index.answer(owner, 0, number, str(number), 0.0)
    index.expire(lambda run, tenant, now_s: None, 9.0)
    assert len(index) == 1000
    sizes = []
    for _ in range(4):
        index.expire(lambda run, tenant, now_s: run if int(run) % 2 else None, 11.0)
        sizes.append(len(index))
    assert sizes == [872, 744, 616, 500]


def test_hashes_of_gone_answers_take_one_place_each_and_survive_a_snapshot():
    gone = GoneAnswers(8)
    digests = [(number + 1 << 20) + number for number in range(20)]
    for digest in digests:
        gone.add(digest, 1000.0)
    assert [gone.has(digest, 2000.0) for digest in digests] == [False] * 12 + [True] * 8
    state = json.loads(json.dumps(gone.snapshot(2000.0)))
    other = GoneAnswers(8)
    other.restore(state, 90_000.0)
    assert other.snapshot(90_000.0) == state
    assert other.has(digests[-1], 174_000.0)
    assert not other.has(digests[-1], 176_000.0)
    assert not other.has(digests[0], 90_000.0)
