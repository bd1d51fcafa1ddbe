"""FairServe's application mix follows Tables 2 and 4: lengths, users, abusers, graphs."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fairserve.benchmarks.traces.generate.agent_apps import (
    TABLE_2,
    AgentApp,
    GraphClass,
    tokens_per_call,
)
from fairserve.benchmarks.traces.generate.agent_mix import (
    AgentMixOptions,
    agent_apps,
    generate_agent_mix,
)
from fairserve.benchmarks.traces.generate.block_ids import BlockIds


@pytest.fixture(scope="module")
def long_mix():
    """Return about 24,000 interactions without abusers."""
    return generate_agent_mix(
        0, AgentMixOptions(interactions_per_s=40.0, duration_s=600.0, abusive_users=0)
    )


@pytest.fixture(scope="module")
def mix():
    """Return about 2,400 interactions without abusers."""
    return generate_agent_mix(
        0, AgentMixOptions(interactions_per_s=40.0, duration_s=60.0, abusive_users=0)
    )


def runs(app, number, seed=0):
    endless = app.runs("owner", "client", BlockIds(), np.random.default_rng(seed))
    return [next(endless) for _ in range(number)]


def only(graph, **kwargs):
    """Return an app of the mean lengths with interactions of one class only."""
    prompt, output = tokens_per_call((graph,))
    return AgentApp("app", prompt, output, classes=(graph,), **kwargs)


@pytest.mark.deep
def test_shares_of_interactions_by_number_of_calls(long_mix):
    sizes = np.array([len(i.calls) for i in long_mix.interactions])
    assert np.mean(sizes == 1) == pytest.approx(0.7322, abs=0.01)
    assert np.mean((sizes >= 2) & (sizes <= 10)) == pytest.approx(0.2609, abs=0.01)
    assert np.mean((sizes >= 11) & (sizes <= 20)) == pytest.approx(0.0050, rel=0.25)
    assert np.mean((sizes >= 21) & (sizes <= 30)) == pytest.approx(0.0011, rel=0.5)
    assert 0 < np.mean(sizes > 30) < 0.001


@pytest.mark.deep
def test_tokens_of_an_interaction_by_number_of_calls(long_mix):
    for graph in TABLE_2[:2]:
        found = [
            i
            for i in long_mix.interactions
            if graph.least_calls <= len(i.calls) <= graph.most_calls
        ]
        prompts = [sum(c.prompt_tokens for c in i.calls) for i in found]
        outputs = [sum(c.output_tokens for c in i.calls) for i in found]
        assert np.mean(prompts) == pytest.approx(graph.input_tokens, rel=0.03)
        assert np.mean(outputs) == pytest.approx(graph.output_tokens, rel=0.05)


@pytest.mark.parametrize("graph", TABLE_2, ids=lambda graph: f"{graph.least_calls}-")
def test_every_single_class_has_its_sums(graph):
    """Rare classes are included. Nothing is cut here; the spread is small, so that few runs suffice."""
    app = only(graph, input_cv=0.1, output_cv=0.1, max_prompt_tokens=10**6)
    some = runs(app, 200 if graph.most_calls <= 10 else 60)
    assert {len(calls) for calls in some} <= set(range(graph.least_calls, graph.most_calls + 1))
    prompts = [sum(c.prompt_tokens for c in calls) for calls in some]
    outputs = [sum(c.output_tokens for c in calls) for calls in some]
    assert np.mean(prompts) == pytest.approx(graph.input_tokens, rel=0.06)
    assert np.mean(outputs) == pytest.approx(graph.output_tokens, rel=0.06)


@pytest.mark.deep
def test_apps_have_the_lengths_and_proportions_of_table_4(long_mix):
    numbers = {"app-14": (6370, 102, 269), "app-7": (14_854, 74, 139), "app-12": (999, 32, 448)}
    counts = Counter(i.app for i in long_mix.interactions)
    of_three = sum(counts[app] for app in numbers)
    assert of_three / len(long_mix) == pytest.approx(0.5, abs=0.01)
    for app, (prompt, output, requests) in numbers.items():
        calls = [c for i in long_mix.interactions if i.app == app for c in i.calls]
        assert np.mean([c.prompt_tokens for c in calls]) == pytest.approx(prompt, rel=0.04)
        assert np.mean([c.output_tokens for c in calls]) == pytest.approx(output, rel=0.12)
        assert counts[app] / of_three == pytest.approx(requests / 856, rel=0.05)


@pytest.mark.parametrize("other_apps", [1, 2, 7])
def test_all_apps_together_have_the_mean_call(other_apps):
    apps = agent_apps(AgentMixOptions(other_apps=other_apps))
    assert len(apps) == 3 + other_apps
    assert sum(share for _, share in apps) == pytest.approx(1)
    prompt = sum(app.prompt_tokens * share for app, share in apps)
    output = sum(app.output_tokens * share for app, share in apps)
    assert (prompt, output) == pytest.approx(tokens_per_call(TABLE_2))


def test_options_apply_to_every_app():
    middle = AgentApp("", 5000.0, 100.0, width=2)
    options = AgentMixOptions(other_spread=3.0, output_spread=2.0, middle=middle)
    apps = [app for app, _ in agent_apps(options)]
    assert apps[-1].prompt_tokens / apps[3].prompt_tokens == pytest.approx(9)
    assert apps[-1].output_tokens / apps[3].output_tokens == pytest.approx(1 / 4)
    assert {app.width for app in apps} == {2}


@pytest.mark.deep
def test_users_stay_with_their_app_and_few_are_heavy(long_mix):
    apps = {}
    for interaction in long_mix.interactions:
        apps.setdefault(interaction.user, set()).add(interaction.app)
    assert len(apps) > 950
    assert {len(of_user) for of_user in apps.values()} == {1}
    users = Counter(i.user for i in long_mix.interactions if i.app == "app-12")
    first, tenth = users["app-12-user-0"], users["app-12-user-9"]
    assert first / tenth == pytest.approx(10**0.8, rel=0.3)


def test_abusers_send_floods():
    trace = generate_agent_mix(0)
    groups = Counter(i.group for i in trace.interactions)
    assert set(groups) == {"abusive", "well-behaved"}
    assert groups["abusive"] == pytest.approx(groups["well-behaved"], rel=0.2)
    users = Counter((i.group, i.user) for i in trace.interactions)
    loudest = max(n for (group, _), n in users.items() if group == "well-behaved")
    abusers = {user: n for (group, user), n in users.items() if group == "abusive"}
    assert set(abusers) == {f"abuser-{index}" for index in range(4)}
    assert min(abusers.values()) > 3 * loudest
    assert len({i.app for i in trace.interactions if i.group == "abusive"}) == 4


def test_system_prompts_belong_to_an_app_and_an_agent(mix):
    first = {}
    for interaction in mix.interactions:
        for call in interaction.calls:
            if call.system_tokens >= 16:
                key = (interaction.app, call.agent)
                assert first.setdefault(key, next(call.block_ids)) == next(call.block_ids)
    assert len(set(first.values())) == len(first) > 20


def test_a_chain_extends_one_context():
    app = only(TABLE_2[1], fan_out_share=0.0)
    for calls in runs(app, 50):
        for index, call in enumerate(calls):
            assert call.deps == ((str(index - 1),) if index else ())
            assert call.agent == "agent"
        for before, call in pairwise(calls):
            blocks = list(before.block_ids)
            assert list(call.block_ids)[: len(blocks)] == blocks
            assert call.prompt_tokens > before.prompt_tokens


@pytest.mark.parametrize("graph", TABLE_2[1:5], ids=lambda graph: f"{graph.least_calls}-")
def test_a_fan_out_has_a_plan_parallel_work_and_a_join(graph):
    for calls in runs(only(graph, fan_out_share=1.0, width=3), 50):
        if len(calls) < 3:
            continue
        of = {call.call_id: call for call in calls}
        assert calls[-1].agent == "join"
        waited_for = {dep for call in calls for dep in call.deps}
        assert waited_for == set(of) - {calls[-1].call_id}  # one sink
        assert sum(not call.deps for call in calls) == 1  # one root
        for call in calls:
            before = {of[dep].agent for dep in call.deps}
            if call.agent == "worker":
                assert before == {"planner"}
            elif call.agent == "planner":
                assert before <= {"join"}
            else:
                assert before in ({"worker"}, {"planner"}, {"join"})
                assert len(call.deps) <= 3
        workers = [call for call in calls if call.agent == "worker"]
        shared = (workers[0].system_tokens + 1) // 16
        for worker in workers:
            assert list(worker.block_ids)[:shared] == list(workers[0].block_ids)[:shared]


def test_tools_add_gaps_before_dependent_calls():
    calls = [call for run in runs(only(TABLE_2[2]), 300) for call in run]
    assert np.mean([c.gap_s for c in calls if c.deps]) == pytest.approx(0.5, rel=0.1)
    assert {c.gap_s for c in calls if not c.deps} == {0.0}


def test_long_prompts_are_truncated(mix):
    lengths = [c.prompt_tokens for i in mix.interactions for c in i.calls]
    assert 30_000 < max(lengths) <= 32_768
    app = only(TABLE_2[1], fan_out_share=0.0, max_prompt_tokens=4000)
    assert max(c.prompt_tokens for run in runs(app, 200) for c in run) <= 4000


GRAPH = GraphClass(1.0, 2, 10, 1000.0, 100.0, 4.0)
APP = AgentApp("app", 1000.0, 100.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(GRAPH, share=0.0), "share is 0.0"),
        (lambda: replace(GRAPH, least_calls=0), "least_calls is 0"),
        (lambda: replace(GRAPH, mean_calls=11.0), "mean_calls is 11.0; 2 to 10"),
        (lambda: replace(GRAPH, most_calls=3), "mean_calls is 4.0; 2 to 3"),
        (lambda: replace(GRAPH, input_tokens=0.0), "input_tokens is 0.0"),
        (lambda: replace(GRAPH, output_tokens=0.0), "output_tokens is 0.0"),
        (lambda: replace(APP, prompt_tokens=0.0), "prompt_tokens is 0.0"),
        (lambda: replace(APP, output_tokens=-1.0), "output_tokens is -1.0"),
        (lambda: replace(APP, system_share=-0.1), "system_share is -0.1"),
        (lambda: replace(APP, system_share=0.6), "leave the calls of every class 2 tokens"),
        (lambda: replace(APP, fan_out_share=1.1), "fan_out_share is 1.1; 0 to 1"),
        (lambda: replace(APP, width=0), "width is 0"),
        (lambda: replace(APP, tool_s=-1.0), "tool_s is -1.0"),
        (lambda: replace(APP, input_cv=-1.0), "input_cv is -1.0"),
        (lambda: replace(APP, output_cv=-1.0), "output_cv is -1.0"),
        (lambda: replace(APP, max_prompt_tokens=0), "max_prompt_tokens is 0"),
        (lambda: replace(APP, max_prompt_tokens=401), "the system prompt alone has 400"),
        (lambda: replace(APP, classes=()), "classes is empty"),
        (lambda: AgentMixOptions(users=9), "users is 9; at least 10"),
        (lambda: AgentMixOptions(user_skew=-1.0), "user_skew is -1.0"),
        (lambda: AgentMixOptions(interactions_per_s=0.0), "interactions_per_s is 0.0"),
        (lambda: AgentMixOptions(abusive_users=-1), "abusive_users is -1"),
        (lambda: AgentMixOptions(abusive_interactions_per_s=0.0), "abusive_interactions_per_s"),
        (lambda: AgentMixOptions(cv=0.0), "cv is 0.0"),
        (lambda: AgentMixOptions(duration_s=-1.0), "duration_s is -1.0"),
        (lambda: AgentMixOptions(table_4_share=1.0), "table_4_share is 1.0"),
        (lambda: AgentMixOptions(other_apps=0), "other_apps is 0"),
        (lambda: AgentMixOptions(other_spread=0.5), "other_spread is 0.5; at least 1"),
        (lambda: AgentMixOptions(output_spread=0.5), "output_spread is 0.5; at least 1"),
        (
            lambda: agent_apps(AgentMixOptions(middle=replace(APP, classes=(GRAPH,)))),
            "it leaves the other apps -",
        ),
    ],
)
def test_invalid_values_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()
