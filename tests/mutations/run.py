"""Apply known bugs one at a time and report which of them the tests find.

    python tests/mutations/run.py [--only NAME ...] [--area AREA ...] [--tree FOLDER]
                                  [--json FILE] [--before FILE] [--processes N]

Each mutation of the catalogue is applied to a copy of the tree's tracked files, its tests run there, and
the file is restored. The outcome is one of these:

- ``killed``: a test fails with the bug and passes without it. An endless loop fails by the limit that
  pytest-timeout sets for one test, and is named so.
- ``SURVIVED``: all its tests pass. The exit status is then 1.
- ``broken``: nothing can be said, for example because the failing test fails without the bug, too, the
  old text is not there, or the mutated file cannot be imported.
- ``skipped``: the environment that the tests need is missing.

The tests that killed something run once more at the end, together, without any mutation. With the same
``--seed`` a run repeats: all randomness of the tests derives from it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parent))

from catalogue import AREAS, MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
SEED = 23
LIMIT_S = 300.0
"""Time limit for the tests of one mutation in seconds. A kill needs a test that fails within it."""
TEST_LIMIT_S = 100
"""Time limit for one test, in seconds (pytest-timeout)."""
UNUSED_PLUGINS = ("cacheprovider", "langsmith_plugin", "schemathesis", "anyio")
"""Plugins of pytest that these tests do not need; importing them takes most of its start."""
STOP_S = 20.0
"""Seconds for fixtures to stop their servers after an interrupt."""


@dataclass
class Outcome:
    """The outcome of one mutation."""

    name: str
    area: str
    status: str
    seconds: float = 0.0
    by: str = ""
    """The first test that failed, by its id."""
    how: str = ""
    """First line of that test's message, or the reason for the status."""
    ran: int = 0
    """Number of tests that ran."""
    missing: list[str] = field(default_factory=list)
    """Targets that are missing in the tree."""


@dataclass(frozen=True)
class TestRun:
    """The result of one run of pytest."""

    status: int
    passed: frozenset[str]
    failed: dict[str, str]
    """First line of each failure, by test id."""
    overtime: bool
    tail: str


# --- the copy -------------------------------------------------------------------------------------


def copy_tree(tree: Path, into: Path) -> Path:
    """Copy the tracked files, and make the folder ``shared`` beside the tree reachable."""
    copy = into / "tree"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=tree, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = tree / name, copy / name
        if source.is_symlink() or source.exists():  # otherwise it is about to be deleted
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    if (shared := tree.parent / "shared").exists():
        (into / "shared").symlink_to(shared)
    return copy


def environment(copy: Path) -> dict[str, str]:
    """Return the environment for tests: the copy precedes an installed FairServe."""
    variables = {name: value for name, value in os.environ.items() if name != "CI"}
    return variables | {"PYTHONPATH": str(copy / "src"), "PYTHONHASHSEED": "0"}


def require_copy(python: Path, copy: Path) -> None:
    """Raise RuntimeError unless this Python imports FairServe from the copy."""
    code = "import fairserve.scheduling as found; print(list(found.__path__)[0])"
    run = subprocess.run(
        [python, "-c", code], cwd=copy, env=environment(copy), capture_output=True, text=True
    )
    found = Path(run.stdout.strip() or "nowhere").resolve()
    if found != (copy / "scheduling").resolve():
        raise RuntimeError(f"{python} imports fairserve from {found}: {run.stderr.strip()}")


@contextlib.contextmanager
def mutated(copy: Path, mutation: Mutation, number: int) -> Iterator[None]:
    """Apply the bug to the copy. Raises what ``Mutation.apply`` raises, and OSError."""
    path = copy / mutation.file
    original, times = path.read_bytes(), path.stat()
    path.write_text(mutation.apply(original.decode()))
    # Bytecode is valid for a size and a whole second: each version of a file gets its own second.
    os.utime(path, (times.st_atime, int(times.st_mtime) + 1 + number))
    try:
        yield
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


# --- running tests --------------------------------------------------------------------------------


def run_tests(
    python: Path, copy: Path, targets: Sequence[str], seed: int, limit_s: float, *options: str
) -> TestRun:
    """Run pytest in the copy and return what it found."""
    shutil.rmtree(copy / ".hypothesis", ignore_errors=True)  # failures of other mutations
    report = copy.parent / "report.xml"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "--tb=short", *options]
    command += [part for name in UNUSED_PLUGINS for part in ("-p", f"no:{name}")]
    command += [f"--hypothesis-seed={seed}", f"--timeout={TEST_LIMIT_S}"]
    command += [f"--junitxml={report}", "-o", "junit_family=xunit1", *targets]
    with (copy.parent / "log").open("w+b") as log:
        process = subprocess.Popen(
            command,
            cwd=copy,
            env=environment(copy),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(limit_s)
            overtime = False
        except subprocess.TimeoutExpired:
            overtime = True
        _stop(process)
        log.seek(0)
        tail = log.read().decode("utf-8", "replace")[-2000:]
    passed, failed = _read_report(report, copy)
    return TestRun(process.returncode, passed, failed, overtime, tail)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the rest of a run: pytest itself, then all its descendants."""
    started = _descendants(process.pid)
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        process.send_signal(stop)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    for pid in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """Return the descendants of a process that is still running; none on systems without /proc."""
    found: list[int] = []
    below = [pid]
    while below:
        path = Path(f"/proc/{below.pop()}/task")
        for children in path.glob("*/children"):
            with contextlib.suppress(OSError):
                more = [int(child) for child in children.read_text().split()]
                found += more
                below += more
    return found


def _read_report(path: Path, copy: Path) -> tuple[frozenset[str], dict[str, str]]:
    """Return the ids of the tests that passed, and the messages of those that failed."""
    if not path.exists():
        return frozenset(), {}
    passed: set[str] = set()
    failed: dict[str, str] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        test = _test_id(case, copy)
        problem = next((part for part in case if part.tag in ("failure", "error")), None)
        if problem is not None:
            lines = (problem.get("message") or problem.text or "").strip().splitlines()
            kind = "" if problem.tag == "failure" else "error in a fixture or at import: "
            failed[test] = (kind + (lines[0] if lines else ""))[:300]
        elif not any(part.tag == "skipped" for part in case):
            passed.add(test)
    return frozenset(passed - failed.keys()), failed


def _test_id(case: ElementTree.Element, copy: Path) -> str:
    """Return the id by which pytest runs a test, from its class and name.

    The file is not used: the report places a stateful test of hypothesis in hypothesis.
    """
    parts = (case.get("classname") or "").split(".")
    modules = (Path(*parts[:length]).with_suffix(".py") for length in range(len(parts), 0, -1))
    file = next((path for path in modules if (copy / path).is_file()), Path(case.get("file") or ""))
    groups = parts[len(file.parts) :]
    return "::".join([str(file), *groups, case.get("name") or ""])


# --- one mutation ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pythons:
    """Interpreters of both environments; ``vllm`` is None if that environment is missing."""

    main: Path
    vllm: Path | None

    def of(self, mutation: Mutation) -> Path | None:
        """Return the interpreter that runs the tests of a mutation."""
        return self.vllm if mutation.needs_vllm else self.main


def try_mutation(
    mutation: Mutation, number: int, copy: Path, pythons: Pythons, seed: int, limit_s: float
) -> Outcome:
    """Run the tests of one mutation with its bug. Whether they pass without it is not known yet."""
    outcome = Outcome(mutation.name, mutation.area, "broken")
    targets, outcome.missing = mutation.targets(copy)
    python = pythons.of(mutation)
    if not targets:
        outcome.how = "none of its targets exists"
        return outcome
    if python is None:
        outcome.status, outcome.how = "skipped", "there is no environment with vLLM (--vllm-python)"
        return outcome
    began_s = time.monotonic()
    try:
        with mutated(copy, mutation, number):
            run = run_tests(python, copy, targets, seed, limit_s, "-x")
    except (OSError, SyntaxError, ValueError) as error:
        outcome.how = str(error)
        return outcome
    outcome.seconds = round(time.monotonic() - began_s, 1)
    outcome.ran = len(run.passed) + len(run.failed)
    return _judged(outcome, run, limit_s)


def _judged(outcome: Outcome, run: TestRun, limit_s: float) -> Outcome:
    if run.failed and (run.status == 1 or run.overtime):
        outcome.status = "killed"
        outcome.by, outcome.how = next(iter(run.failed.items()))
        if "Timeout (>" in outcome.how:
            outcome.how = f"by the time limit of {TEST_LIMIT_S} s for a test"
    elif run.overtime:  # slow tests, or a loop that no test's limit ends: unknown which
        outcome.how = f"no test failed within {limit_s:g} s; name fewer or quicker tests"
    elif run.status == 0 and run.passed:
        outcome.status, outcome.how = "SURVIVED", f"{len(run.passed)} tests pass"
    elif run.status in (0, 5):
        outcome.how = "no test ran: all are skipped or deselected"
    else:
        lines = run.tail.strip().splitlines() or [""]
        outcome.how = f"pytest ended with {run.status}: {lines[-1]}"
    return outcome


def confirm(
    outcomes: Sequence[Outcome], copy: Path, pythons: Pythons, seed: int, limit_s: float
) -> None:
    """Run the failed tests without any bug: a test that fails there as well kills nothing."""
    by_name = {each.name: each for each in MUTATIONS}
    for python in dict.fromkeys((pythons.main, pythons.vllm)):
        killed = [
            each
            for each in outcomes
            if each.status == "killed" and pythons.of(by_name[each.name]) == python
        ]
        tests = sorted({each.by for each in killed})
        if python is None or not tests:
            continue
        run = run_tests(python, copy, tests, seed, limit_s * (1 + len(tests) // 10))
        for each in killed:
            if each.by not in run.passed:
                each.status = "broken"
                reason = run.failed.get(each.by, "did not run: " + run.tail.strip()[-200:])
                each.how = f"its test does not pass without the bug either: {reason}"


# --- all of them ----------------------------------------------------------------------------------


def run_all(
    mutations: Sequence[Mutation],
    tree: Path,
    pythons: Pythons,
    *,
    seed: int = SEED,
    limit_s: float = LIMIT_S,
    processes: int = 1,
) -> list[Outcome]:
    """Try the mutations, with one process and one copy of the tree for each worker thread."""
    with tempfile.TemporaryDirectory(prefix="fairserve-mutations-") as name:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(processes):
            folder = Path(name) / str(number)
            folder.mkdir()
            copies.put(copy_tree(tree, folder))
        first = copies.get()
        for python in filter(None, (pythons.main, pythons.vllm)):
            require_copy(python, first)
        copies.put(first)

        def attempt(number: int) -> Outcome:
            copy = copies.get()
            try:
                found = try_mutation(mutations[number], number, copy, pythons, seed, limit_s)
            finally:
                copies.put(copy)
            show(found)
            return found

        with ThreadPoolExecutor(processes) as pool:
            outcomes = list(pool.map(attempt, range(len(mutations))))
        provisional = [each.status for each in outcomes]
        confirm(outcomes, copies.get(), pythons, seed, limit_s)
    for before, each in zip(provisional, outcomes, strict=True):
        if each.status != before:
            show(each)
    return outcomes


def show(outcome: Outcome) -> None:
    """Print one line, or two."""
    how = f"{outcome.by}: {outcome.how}" if outcome.by else outcome.how
    print(f"{outcome.status:9}{outcome.name:58}{outcome.seconds:6.1f} s  {how}", flush=True)
    if outcome.missing:
        print(f"         not in this tree: {', '.join(outcome.missing)}", flush=True)


def summarise(outcomes: Sequence[Outcome]) -> None:
    """Print the numbers by area."""
    statuses = ("killed", "SURVIVED", "broken", "skipped")
    for area in (*AREAS, "all"):
        of_area = [each for each in outcomes if area in (each.area, "all")]
        counts = [sum(each.status == status for each in of_area) for status in statuses]
        if of_area:
            parts = (f"{count} {status}" for count, status in zip(counts, statuses, strict=True))
            print(f"{area:12}{', '.join(parts)}")


def commit_of(tree: Path) -> str:
    """Return the commit of a tree, with a mark if tracked files differ from it."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, capture_output=True, text=True)
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=tree)
    return head.stdout.strip() + ("-changed" if changed.returncode else "")


def store(path: Path, commit: str, seed: int, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Add to the results of earlier runs at the same commit; return all of them."""
    by_name: dict[str, Outcome] = {}
    if path.exists():
        earlier = json.loads(path.read_text())
        if (earlier["commit"], earlier["seed"]) == (commit, seed):
            by_name = {each["name"]: Outcome(**each) for each in earlier["results"]}
    by_name |= {each.name: each for each in outcomes}
    known = [by_name[each.name] for each in MUTATIONS if each.name in by_name]
    plain = {"commit": commit, "seed": seed, "results": [asdict(each) for each in known]}
    path.write_text(json.dumps(plain, indent=1) + "\n")
    return known


def compare(before: Path, outcomes: Sequence[Outcome]) -> list[str]:
    """Return the names of mutations that an earlier run killed and this one did not."""
    earlier = json.loads(before.read_text())["results"]
    killed = {each["name"] for each in earlier if each["status"] == "killed"}
    return [each.name for each in outcomes if each.status != "killed" and each.name in killed]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutations")
    parser.add_argument("--area", nargs="+", choices=AREAS, help="the mutations of these areas")
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout to test; this one")
    parser.add_argument("--python", type=Path, help="TREE/.venv/bin/python, else this one")
    parser.add_argument("--vllm-python", type=Path, help="TREE/.venv-vllm/bin/python")
    parser.add_argument("--json", type=Path, help="file to which the results are added")
    parser.add_argument(
        "--before", type=Path, help="results to compare with: who is not killed now"
    )
    parser.add_argument("--processes", type=int, default=1, help="mutations at a time")
    parser.add_argument("--seed", type=int, default=SEED, help="of all randomness of the tests")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one mutation")
    parser.add_argument("--check", action="store_true", help="apply only, without running tests")
    options = parser.parse_args(given)
    unknown = set(options.only or ()) - {each.name for each in MUTATIONS}
    if unknown:
        parser.error(f"unknown mutations: {', '.join(sorted(unknown))}")
    return options


def check(mutations: Sequence[Mutation], tree: Path) -> int:
    """Apply each mutation to its file's text; return 1 if one cannot be applied or has no target."""
    status = 0
    for mutation in mutations:
        problem = ""
        try:
            mutation.apply((tree / mutation.file).read_text())
        except (OSError, SyntaxError, ValueError) as error:
            problem = str(error)
        targets, missing = mutation.targets(tree)
        if not targets:
            problem = problem or "none of its targets exists"
        if problem or missing:
            print(f"{mutation.name}: {problem or 'not in this tree: ' + ', '.join(missing)}")
        status = 1 if problem else status
    print(f"{len(mutations)} mutations")
    return status


def main() -> int:
    """Run the command; return 1 if a mutation survives or cannot be judged, else 0."""
    options = arguments()
    tree = options.tree.resolve()
    mutations = [
        each
        for each in MUTATIONS
        if (options.only is None or each.name in options.only)
        and (options.area is None or each.area in options.area)
    ]
    if options.check:
        return check(mutations, tree)
    own, own_vllm = tree / ".venv/bin/python", tree / ".venv-vllm/bin/python"
    main_python = options.python or (own if own.exists() else Path(sys.executable))
    vllm_python = options.vllm_python or (own_vllm if own_vllm.exists() else None)
    # Not resolved: the Python of an environment is a link, and its path selects the environment.
    pythons = Pythons(main_python.absolute(), vllm_python and vllm_python.absolute())
    commit = commit_of(tree)
    print(f"{len(mutations)} mutations at {commit}, seed {options.seed}", flush=True)
    outcomes = run_all(
        mutations,
        tree,
        pythons,
        seed=options.seed,
        limit_s=options.limit,
        processes=options.processes,
    )
    summarise(outcomes)
    if options.json is not None:
        store(options.json, commit, options.seed, outcomes)
    lost = [] if options.before is None else compare(options.before, outcomes)
    for name in lost:
        print(f"killed before, and not now: {name}")
    return 1 if lost or any(each.status in ("SURVIVED", "broken") for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
