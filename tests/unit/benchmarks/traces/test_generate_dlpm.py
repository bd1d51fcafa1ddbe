"""The DLPM paper's programs have the published means, numbers of calls, sharing, and misbehaviours."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fairserve.benchmarks.traces.generate.block_ids import BlockIds
from fairserve.benchmarks.traces.generate.chat import Chat
from fairserve.benchmarks.traces.generate.dlpm_programs import (
    DLPM_WORKLOADS,
    DlpmLoad,
    Misbehaviour,
    generate_dlpm,
)
from fairserve.benchmarks.traces.generate.judge import Judge
from fairserve.benchmarks.traces.generate.long_context_qa import LongContextQa
from fairserve.benchmarks.traces.generate.programs import ProgramClient, generate_programs
from fairserve.benchmarks.traces.generate.tree_of_thoughts import TreeOfThoughts


def runs(program, number, seed=0):
    endless = program.runs("owner", "client", BlockIds(), np.random.default_rng(seed))
    return [next(endless) for _ in range(number)]


def means(some_runs):
    calls = [call for run in some_runs for call in run]
    return (
        np.mean([call.prompt_tokens for call in calls]),
        np.mean([call.output_tokens for call in calls]),
    )


def ids(call):
    return list(call.block_ids)


@pytest.mark.parametrize(
    ("program", "prompt", "output"),
    [
        (TreeOfThoughts(), 546, 256),
        (Judge(), 2701, 256),
        (LongContextQa(), 21_449, 15),
        (TreeOfThoughts(question_factor=10.0), 546 + 9 * 78.8, 256),
        (Judge(extra_tokens=600), 3301, 256),
        (LongContextQa(document_factor=2.0), 2 * 21_449 - 112, 15),
        (TreeOfThoughts(cv=0.0), 546, 256),
    ],
    ids=str,
)
@pytest.mark.deep
def test_lengths_have_the_published_means(program, prompt, output):
    count = 8000 if isinstance(program, LongContextQa) else 1000  # few documents, many questions
    assert means(runs(program, count)) == pytest.approx((prompt, output), rel=0.02)


@pytest.mark.deep
def test_a_chat_turn_adds_the_published_lengths():
    conversations = runs(Chat(), 3000)
    added, turns = [], []
    for calls in conversations:
        turns.append(len(calls))
        context_tokens = 0
        for call in calls:
            added.append(call.prompt_tokens - context_tokens)
            context_tokens = call.prompt_tokens + call.output_tokens
    assert np.mean(added) == pytest.approx(56, rel=0.02)
    assert means(conversations)[1] == pytest.approx(142, rel=0.02)
    assert np.mean(turns) == pytest.approx(4, rel=0.05)
    gaps = [call.gap_s for calls in conversations for call in calls[1:]]
    assert np.mean(gaps) == pytest.approx(5, rel=0.05)


def test_trees_have_the_published_numbers_of_calls():
    for branches, calls in [(2, 30), (3, 120), (4, 340)]:
        program = TreeOfThoughts(branches=branches)
        (tree,) = runs(program, 1)
        assert len(tree) == calls
        levels = Counter(call.agent for call in tree)
        assert list(levels.values()) == [branches**level for level in (1, 2, 3, 4)]


def test_a_child_depends_on_and_extends_its_parent():
    for tree in runs(TreeOfThoughts(), 20):
        by_id = {call.call_id: call for call in tree}
        children = Counter(call.deps for call in tree)
        assert children.pop(()) == 2
        assert set(children.values()) == {2}
        for call in tree:
            if not call.deps:
                assert ids(call) == ids(tree[0])
                continue
            (parent,) = (by_id[dep] for dep in call.deps)
            assert ids(call)[: len(ids(parent))] == ids(parent)
            assert call.prompt_tokens == parent.prompt_tokens + parent.output_tokens + 32


def test_children_of_one_call_share_its_output_and_cousins_do_not():
    (tree,) = runs(TreeOfThoughts(cv=0.0), 1)
    prompts = {}
    for call in tree:
        prompts.setdefault(call.deps, []).append(ids(call))
    for siblings in prompts.values():
        assert siblings[0] == siblings[1]
    one, other = prompts[("0",)][0], prompts[("1",)][0]
    parents_full_blocks = tree[0].prompt_tokens // 16
    assert one[:parents_full_blocks] == other[:parents_full_blocks]
    assert not set(one[parents_full_blocks:]) & set(other[parents_full_blocks:])


@pytest.mark.parametrize("dimensions", [2, 16])
def test_judges_share_the_article_and_a_last_call_merges(dimensions):
    program = Judge(dimensions=dimensions)
    for run in runs(program, 5):
        *judges, merge = run
        assert len(judges) == dimensions
        assert not any(call.deps for call in judges)
        assert merge.deps == tuple(call.call_id for call in judges)
        shared = (judges[0].prompt_tokens - program.dimension_tokens) // 16
        assert shared > 50
        for call in run[1:]:
            assert ids(call)[:shared] == ids(run[0])[:shared]
            assert ids(call)[shared + 1 :] != ids(run[0])[shared + 1 :]
        written = sum(call.output_tokens for call in judges)
        assert merge.prompt_tokens == judges[0].prompt_tokens + written


def test_articles_of_an_owner_share_only_their_common_prefix():
    for program, shared in [(Judge(), 64 // 16), (Judge(extra_tokens=600), 664 // 16)]:
        one, two = runs(program, 2)
        assert ids(one[0])[:shared] == ids(two[0])[:shared]
        assert not set(ids(one[0])[shared:]) & set(ids(two[0])[shared:])


def test_documents_get_their_questions_and_few_are_open():
    program = LongContextQa(questions_per_document=5, open_documents=3)
    order = [ids(call)[10] for (call,) in runs(program, 500)]
    asked = Counter(order)
    assert sorted(asked.values())[3:] == [5] * (len(asked) - 3)  # all but those still open
    for index in range(500):
        still = [d for d in set(order[: index + 1]) if d in order[index:]]
        assert len(still) <= 3
    assert any(a != b for a, b in pairwise(order))  # interleaved


def test_a_conversation_is_a_growing_chain():
    for calls in runs(Chat(), 50):
        for before, call in pairwise(calls):
            assert call.deps == (before.call_id,)
            assert ids(call)[: len(ids(before))] == ids(before)
            assert call.prompt_tokens > before.prompt_tokens + before.output_tokens


@pytest.mark.parametrize("name", DLPM_WORKLOADS)
@pytest.mark.parametrize("misbehaviour", list(Misbehaviour))
def test_clients_have_their_groups_and_programs(name, misbehaviour):
    workload = DLPM_WORKLOADS[name]
    trace = generate_dlpm(name, misbehaviour, 0)
    groups = {i.user: i.group for i in trace.interactions}
    assert len(groups) == workload.load.clients
    wrong = 0 if misbehaviour is Misbehaviour.NONE else workload.load.misbehaving
    assert [groups[f"client-{index}"] for index in range(len(groups))] == (
        ["misbehaving"] * wrong + ["well-behaved"] * (len(groups) - wrong)
    )


def per_client(trace, count):
    found = Counter()
    for interaction in trace.interactions:
        found[interaction.user] += count(interaction)
    return [found[user] for user in sorted(found)]


@pytest.mark.deep
def test_misbehaviours_add_calls_or_tokens():
    load = DlpmLoad(0.5, duration_s=400.0, flood=4.0)
    for name, factor in [("tree-of-thoughts", 340 / 30), ("judge", 17 / 3)]:
        trace = generate_dlpm(name, Misbehaviour.MORE_REQUESTS, 0, load=replace(load, flood=1.0))
        wrong, *right = per_client(trace, lambda i: len(i.calls))
        assert wrong / np.mean(right) == pytest.approx(factor, rel=0.25)
    flood = generate_dlpm("long-context-qa", Misbehaviour.MORE_REQUESTS, 0, load=load)
    wrong, *right = per_client(flood, lambda i: 1)
    assert wrong / np.mean(right) == pytest.approx(4.0, rel=0.15)
    for name, added in [
        ("tree-of-thoughts", 9 * 78.8),
        ("judge", 600),
        ("long-context-qa", 21_337),
        ("chat", 600),
    ]:
        long_s = 4000.0 if name == "long-context-qa" else load.duration_s
        trace = generate_dlpm(
            name, Misbehaviour.LONGER_PREFIX, 0, load=replace(load, duration_s=long_s)
        )
        prompts = {"misbehaving": [], "well-behaved": []}
        for interaction in trace.interactions:
            prompts[interaction.group] += [c.prompt_tokens for c in interaction.calls[:1]]
        difference = np.mean(prompts["misbehaving"]) - np.mean(prompts["well-behaved"])
        assert difference == pytest.approx(added, rel=0.15)


def test_the_load_grows_with_the_workers():
    base = DlpmLoad(1.0, duration_s=60.0)
    one, eight = (
        len(generate_dlpm("judge", Misbehaviour.NONE, 0, load=replace(base, workers=workers)))
        for workers in (1, 8)
    )
    assert one == pytest.approx(180, rel=0.2)
    assert eight == pytest.approx(1440, rel=0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TreeOfThoughts(branches=0), "branches is 0; at least 1"),
        (lambda: TreeOfThoughts(height=0), "height is 0"),
        (lambda: TreeOfThoughts(reference_branches=0), "reference_branches is 0"),
        (lambda: TreeOfThoughts(instruction_tokens=-1), "instruction_tokens is -1"),
        (lambda: TreeOfThoughts(system_tokens=-1), "system_tokens is -1"),
        (lambda: TreeOfThoughts(question_factor=0.0), "question_factor is 0.0"),
        (lambda: TreeOfThoughts(cv=-1.0), "cv is -1.0"),
        (lambda: TreeOfThoughts(thought_tokens=256.0), "lower thought_tokens"),
        (lambda: TreeOfThoughts(output_tokens=50.0), "for an answer; at least 1"),
        (lambda: Judge(dimensions=0), "dimensions is 0"),
        (lambda: Judge(reference_dimensions=0), "reference_dimensions is 0"),
        (lambda: Judge(dimension_tokens=-1), "dimension_tokens is -1"),
        (lambda: Judge(system_tokens=-1), "system_tokens is -1"),
        (lambda: Judge(extra_tokens=-1), "extra_tokens is -1"),
        (lambda: Judge(cv=-1.0), "cv is -1.0"),
        (lambda: Judge(prompt_tokens=100.0), "for the article; both lengths"),
        (lambda: Judge(output_tokens=0.0), "output_tokens 0.0 leave"),
        (lambda: LongContextQa(question_tokens=0), "question_tokens is 0"),
        (lambda: LongContextQa(system_tokens=-1), "system_tokens is -1"),
        (lambda: LongContextQa(document_factor=-1.0), "document_factor is -1.0"),
        (lambda: LongContextQa(questions_per_document=0), "questions_per_document is 0"),
        (lambda: LongContextQa(open_documents=0), "open_documents is 0"),
        (lambda: LongContextQa(cv=float("nan")), "cv is nan"),
        (lambda: LongContextQa(prompt_tokens=100.0), "for the document; both lengths"),
        (lambda: Chat(message_tokens=0.0), "mean length is 0.0"),
        (lambda: Chat(output_tokens=0.0), "mean length is 0.0"),
        (lambda: Chat(turns=0.5), "turns is 0.5; 1 to most_turns"),
        (lambda: Chat(turns=33.0), "turns is 33.0"),
        (lambda: Chat(most_turns=0), "most_turns is 0"),
        (lambda: Chat(system_tokens=-1), "system_tokens is -1"),
        (lambda: Chat(think_s=-1.0), "think_s is -1.0"),
        (lambda: Chat(cv=-1.0), "cv of a length is -1.0"),
        (lambda: DlpmLoad(0.0), "programs_per_s is 0.0"),
        (lambda: DlpmLoad(1.0, workers=0), "workers is 0"),
        (lambda: DlpmLoad(1.0, clients=0), "clients is 0"),
        (lambda: DlpmLoad(1.0, misbehaving=4), r"misbehaving is 4; 0 to clients \(3\)"),
        (lambda: DlpmLoad(1.0, cv=0.0), "cv is 0.0"),
        (lambda: DlpmLoad(1.0, duration_s=0.0), "duration_s is 0.0"),
        (lambda: DlpmLoad(1.0, flood=0.0), "flood is 0.0"),
        (lambda: generate_dlpm("chess", "S1", 0), "no workload 'chess'; there are long-context-qa"),
        (lambda: generate_dlpm("chat", "S3", 0), "no misbehaviour 'S3'; there are none, S1, S2"),
        (lambda: generate_programs("", [], 1.0, 0), r"clients are \[\]"),
    ],
)
def test_invalid_values_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_two_clients_cannot_be_the_same_user():
    client = ProgramClient("u", Chat(), DlpmLoad(1.0).arrivals(False))
    with pytest.raises(ValueError, match="each with its own user"):
        generate_programs("", [client, client], 1.0, 0)
