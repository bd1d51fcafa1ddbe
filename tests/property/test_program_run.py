"""Programs equal networkx and a plain evaluation: shape, order, ends, restarts."""

import json
import random
from collections import Counter

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.interactions.programs.program import ProgramLimits, parse_program
from fairserve.interactions.programs.program_run import ProgramRun
from fairserve.interactions.programs.program_state import SETTLED
from fairserve.interactions.tracking.graph import GraphCycleError, InteractionGraph

SEEDS = st.integers(0, 2**32)


def random_parents(rng, size, most=3):
    """Return an acyclic graph, declared in any order."""
    names = [f"n{number}" for number in range(size)]
    parents = {
        name: rng.sample(names[:number], rng.randint(0, min(most, number)))
        for number, name in enumerate(names)
    }
    rng.shuffle(names)
    return {name: parents[name] for name in names}


def digraph(parents, weights=None):
    """Return the graph in networkx, with an edge into every root, weighted by the end of each edge."""
    graph = nx.DiGraph()
    for node, its_parents in parents.items():
        for parent in its_parents or ["before all"]:
            graph.add_edge(parent, node, weight=weights[node] if weights else 1)
    return graph


# --- the graph ------------------------------------------------------------------------------------


@given(SEEDS, st.integers(1, 25))
def test_the_shape_equals_that_of_networkx(seed, size):
    rng = random.Random(seed)
    parents = random_parents(rng, size)
    weights = {node: float(rng.randint(0, 9)) for node in parents}
    graph, reference = InteractionGraph(parents), digraph(parents, weights)
    for node in parents:
        before = reference.subgraph(nx.ancestors(reference, node) | {node})
        assert graph.stages[node] == nx.dag_longest_path_length(before, weight=None)
        assert graph.ancestors(node) == set(before) - {node, "before all"}
        after = reference.subgraph(nx.descendants(reference, node) | {node})
        assert graph.remaining(weights)[node] == (
            weights[node] + nx.dag_longest_path_length(after, default_weight=0)
        )
        for other in parents:
            assert graph.is_ancestor(other, node) == (other in graph.ancestors(node))
    assert [node for column in graph.columns for node in column] == sorted(
        parents, key=lambda node: (graph.stages[node], list(parents).index(node))
    )
    path, length = graph.critical_path(weights)
    assert length == nx.dag_longest_path_length(reference)
    assert nx.is_path(reference, ["before all", *path])
    assert (path[-1] in graph.sinks, sum(weights[node] for node in path)) == (True, length)


@given(SEEDS, st.integers(1, 9))
def test_the_widest_stage_can_run_concurrently(seed, size):
    parents = random_parents(random.Random(seed), size)
    graph = InteractionGraph(parents)
    antichains = set(map(frozenset, nx.antichains(graph.digraph)))
    assert all(frozenset(column) in antichains for column in graph.columns)
    assert graph.parallelism <= max(map(len, antichains))


@given(SEEDS, st.integers(2, 15))
def test_cycles_are_found_exactly_where_they_exist(seed, size):
    rng = random.Random(seed)
    parents = random_parents(rng, size)
    names = list(parents)
    for _ in range(rng.randint(0, 2)):
        child, parent = rng.sample(names, 2)
        parents[child] = [*parents[child], parent]
    reference = digraph(parents)
    if nx.is_directed_acyclic_graph(reference):
        assert len(InteractionGraph(parents)) == size
        return
    with pytest.raises(GraphCycleError) as raised:
        InteractionGraph(parents)
    cycle = raised.value.cycle
    assert nx.is_path(reference, [*cycle, cycle[0]])
    assert len(set(cycle)) == len(cycle)
    assert cycle[0] == min(cycle, key=names.index)


# --- a run in lockstep ----------------------------------------------------------------------------


@given(SEEDS, st.integers(1, 30))
def test_every_node_runs_in_the_round_of_its_stage(seed, size):
    parents = random_parents(random.Random(seed), size)
    nodes = [
        {"id": node, "prompt": "go" + "".join(f"{{{{{each}.output}}}}" for each in its_parents)}
        for node, its_parents in parents.items()
    ]
    program = parse_program({"model": "m", "nodes": nodes})
    run = ProgramRun(program)
    tasks, rounds = run.start(), []
    while tasks:
        rounds.append({task.node for task in tasks})
        for task in tasks:
            assert set(task.parents) == set(parents[task.node])
        tasks = [new for task in tasks for new in run.succeeded(task.task_id, task.node)]
    assert rounds == [set(column) for column in program.graph.columns]
    assert run.state == "complete"


# --- a random run ---------------------------------------------------------------------------------

OUTPUTS = ("yes", "no", "", "[]", '["a", {"k": "b"}]', '[["x"], "{{n0.output}}", 3]', '{"k": [1]}')


def random_program(rng, size, limits):
    """Return nodes with conditions, maps, fields and retries; some of them fail to render."""
    nodes = []
    for node, parents in random_parents(rng, size).items():
        plain = {"id": node, "prompt": f"{node}:", "retries": rng.randint(0, 2)}
        plain["prompt"] += "".join(f" {{{{{each}.output}}}}" for each in parents)
        if parents:
            plain["parents"] = parents
            if rng.random() < 0.3:
                op, value = rng.choice(
                    [("equals", "yes"), ("not_equals", "no"), ("not_empty", None)]
                )
                plain["when"] = {"node": rng.choice(parents), "op": op}
                if value:
                    plain["when"]["value"] = value
            if rng.random() < 0.4:
                plain["map"] = {"over": rng.choice(parents), "limit": rng.randint(2, 6)}
                plain["prompt"] += " {{index}}={{item}}"
            if rng.random() < 0.05:
                plain["prompt"] += f" {{{{{rng.choice(parents)}.output.k}}}}"
        nodes.append(plain)
    return parse_program({"model": "m", "nodes": nodes}, limits)


class Outcomes:
    """Outcomes of all tasks, the same for any number and order of lookups."""

    def __init__(self, seed, failing):
        self._seed, self._failing = seed, failing

    def _of(self, *what):
        return random.Random(repr((self._seed, *what)))

    def failures(self, task):
        """Return how often it fails before it succeeds."""
        return self._of("fails", task).choice((1, 1, 2, 9)) if self._fails(task) else 0

    def _fails(self, task):
        return self._of("whether", task).random() < self._failing

    def again(self, task):
        return self._of("again", task).random() < 0.9

    def output(self, task):
        return self._of("output", task).choice(OUTPUTS)

    def next(self, running):
        """Return the task whose turn it is; equal for equal sets."""
        return min(sorted(running), key=lambda task: self._of("turn", task).random())


class Watched:
    """A run that is restored at times, with the invariants of every step."""

    def __init__(self, program, fate, rng, restores):
        self.program, self.fate, self.rng, self.restores = program, fate, rng, restores
        self.run = ProgramRun(program)
        self.store = self.run.to_plain()
        self.running = {}
        self.handed_out = set()
        self.ended = Counter()
        self.failed = Counter()
        self.take(self.run.start())

    def take(self, tasks):
        for task in tasks:
            node = self.program.nodes[task.node]
            assert all(self.run.nodes[each].state in SETTLED for each in node.parents)
            assert (task.task_id, task.attempt) not in self.handed_out
            assert self.ended[task.task_id] == 0, "what has ended is not run again"
            assert all(self.ended[parent] == 1 for parent in task.parents)
            assert task.body() == {"prompt": self.expected_prompt(task)}
            self.handed_out.add((task.task_id, task.attempt))
            self.running[task.task_id] = task
        assert set(self.run.running) == set(self.running)
        changes = json.loads(json.dumps(self.run.changes()))
        self.store["nodes"] |= changes["nodes"]
        self.store["tasks"] |= changes["tasks"]
        self.store["cancelled"] = changes["cancelled"]
        assert self.store == json.loads(json.dumps(self.run.to_plain()))

    def expected_prompt(self, task):
        """Build the prompt by hand: the parents' outputs, the place and the item."""
        node = self.program.nodes[task.node]
        lines = [f"{task.node}:"] + [self.text(parent) for parent in node.parents]
        if node.map:
            output = self.run.output(node.map.node)
            items = output if isinstance(output, list) else json.loads(output)
            item = items[task.index]
            lines.append(f"{task.index}={item if isinstance(item, str) else compact(item)}")
        fields = [each for _, each in node.body.placeholders if each.path]
        for field in fields:
            output = self.run.output(field.node)
            value = "" if output is None else json.loads(output)["k"]
            lines.append(value if isinstance(value, str) else compact(value))
        return " ".join(lines)

    def text(self, node):
        output = self.run.output(node)
        return compact(output) if isinstance(output, list) else output or ""

    def step(self):
        if self.rng.random() < self.restores:
            plain = json.loads(json.dumps(self.store))
            for kind in ("nodes", "tasks"):  # rows of a table are returned in any order
                rows = list(plain[kind].items())
                self.rng.shuffle(rows)
                plain[kind] = dict(rows)
            self.run = ProgramRun.restore(self.program, plain)
            assert self.run.running == ()
            self.running = {}
            self.take(self.run.start())
        task = self.fate.next(self.running)
        del self.running[task]
        if self.failed[task] < self.fate.failures(task):
            self.failed[task] += 1
            tasks = self.run.failed(
                task, f"failure {self.failed[task]}", again=self.fate.again(task)
            )
            assert [each.task_id for each in tasks] in ([], [task])
            self.ended[task] += not tasks
        else:
            self.ended[task] += 1
            tasks = self.run.succeeded(task, self.fate.output(task))
            assert self.run.succeeded(task, "again") == []
        self.take(tasks)

    def end(self):
        while not self.run.done:
            assert self.running, "it waits for nothing"
            self.step()
        assert not self.running
        return self

    def outcome(self):
        """Return the end, without the numbers of attempts."""
        plain = self.run.to_plain()
        for task in plain["tasks"].values():
            del task["attempt"]
        return self.run.state, self.run.result, plain


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


LIMITS = ProgramLimits(nodes=20)
TIGHT = ProgramLimits(nodes=20, instances=24, output_bytes=18, run_output_bytes=120)


@given(SEEDS, st.integers(1, 12), st.sampled_from([0.0, 0.15]), st.sampled_from([LIMITS, TIGHT]))
def test_restarts_change_nothing(seed, size, failing, limits):
    rng = random.Random(seed)
    program, fate = random_program(rng, size, limits), Outcomes(seed, failing)
    straight = Watched(program, fate, rng, 0.0).end()
    restored = Watched(program, fate, rng, 0.5).end()
    assert restored.outcome() == straight.outcome()
    assert all(count == 1 for count in straight.ended.values())
    assert restored.ended == straight.ended


@given(SEEDS, st.integers(1, 12), st.sampled_from([0.0, 0.15]))
def test_the_end_equals_a_plain_evaluation(seed, size, failing):
    """The reference evaluates node by node, each with all of its instances."""
    rng = random.Random(seed)
    program, fate = random_program(rng, size, LIMITS), Outcomes(seed, failing)
    run = Watched(program, fate, rng, 0.1).end().run
    expected, outputs = evaluate(program, fate)
    assert {node: each.state for node, each in run.nodes.items()} == expected
    assert {node: run.output(node) for node in program.nodes} == outputs
    assert run.state == ("failed" if "failed" in expected.values() else "complete")


def evaluate(program, fate):
    """Return state and output of every node, by the documented rules only."""
    states, outputs, lost = {}, {}, set()

    def settle(node, state, output=None, is_lost=False):
        states[node], outputs[node] = state, output
        lost.update({node} if is_lost else ())

    for node_id in nx.topological_sort(digraph({n: p.parents for n, p in program.nodes.items()})):
        if node_id not in program.nodes:
            continue
        node = program.nodes[node_id]
        if lost & set(node.parents):
            settle(node_id, "skipped", is_lost=True)
        elif is_skipped(node, states, outputs):
            settle(node_id, "skipped")
        else:
            items = list_of(outputs[node.map.node]) if node.map else [None]
            if not can_be_sent(node, items, outputs):
                settle(node_id, "failed", is_lost=True)
            else:
                tasks = [f"{node_id}[{i}]" for i in range(len(items))] if node.map else [node_id]
                if all(ends_well(fate, task, node.retries) for task in tasks):
                    texts = [fate.output(task) for task in tasks]
                    settle(node_id, "done", texts if node.map else texts[0])
                else:
                    settle(node_id, "failed", is_lost=True)
    return states, outputs


def is_skipped(node, states, outputs):
    return (
        (node.parents and all(states[each] == "skipped" for each in node.parents))
        or (node.when and not condition_holds(node.when, outputs[node.when.node]))
        or (node.map and states[node.map.node] == "skipped")
    )


def can_be_sent(node, items, outputs):
    if items is None or (node.map and len(items) > node.map.limit):
        return False
    fields = [outputs[each.node] for _, each in node.body.placeholders if each.path]
    return not items or all(output is None or has_k(output) for output in fields)


def ends_well(fate, task, retries):
    failures = fate.failures(task)
    return failures == 0 or (fate.again(task) and failures <= retries)


def condition_holds(when, output):
    if when.op == "not_empty":
        return bool(output)
    text = compact(output) if isinstance(output, list) else output
    return (text == when.value) == (when.op == "equals")


def list_of(output):
    try:
        value = json.loads(output) if isinstance(output, str) else output
    except ValueError:
        return None
    return value if isinstance(value, list) else None


def has_k(output):
    try:
        return "k" in json.loads(output) if isinstance(output, str) else False
    except ValueError:
        return False


@given(SEEDS, st.integers(1, 12))
def test_a_cancelled_run_stays_ended(seed, size):
    rng = random.Random(seed)
    program, fate = random_program(rng, size, LIMITS), Outcomes(seed, 0.1)
    watched = Watched(program, fate, rng, 0.2)
    for _ in range(rng.randint(0, 5)):
        if not watched.run.done:
            watched.step()
    if watched.run.done:
        return
    run, running = watched.run, set(watched.running)
    assert set(run.cancel()) == running
    before = json.dumps(run.to_plain())
    for task in running:
        assert run.succeeded(task, "late") == run.failed(task, "late", again=True) == []
    assert json.dumps(run.to_plain()) == before
    assert (run.state, run.cancel()) == ("cancelled", [])
    restored = ProgramRun.restore(program, json.loads(before))
    assert (restored.start(), restored.state) == ([], "cancelled")
