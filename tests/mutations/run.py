"""Change the core in one small place at a time, and report the changes that no test finds.

A process is forked for each mutation of the sample. It compiles the mutated module in place of its file,
runs the module's tests until one fails, and is killed after ten times the CPU seconds that they take
without a mutation. The hash of its name puts a mutation into the sample, so that a change of the code
keeps the rest. Exit status 1: a score below ``--least``. Weakness: processes of the tests do not see it.
"""

import argparse
import ast
import hashlib
import importlib.machinery
import os
import resource
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy  # noqa: F401  # imported once, not by each process
import pytest
from operators import Mutation, mutations

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ["-pno:xdist", "-pno:cacheprovider", "-x", "-q", "--timeout=100", "--hypothesis-seed=23"]
Tests = tuple[str, ...]
TESTS = tomllib.loads(Path(__file__).with_name("tests.toml").read_text())


def modules(chosen: tuple[str, ...]) -> Iterator[tuple[str, Tests]]:
    """Yield the modules with the files of their tests. Raises SystemExit for a pattern without files."""
    for place, patterns in TESTS.items():
        tests: list[str] = []
        for pattern in patterns:
            found = sorted(map(str, (ROOT / "tests").glob(pattern)))
            tests += found or sys.exit(f"{place}: there are no tests/{pattern}")
        for path in sorted((ROOT / place).rglob("*.py")) or [ROOT / place]:
            if (module := path.relative_to(ROOT).as_posix()).startswith(chosen):
                yield module, tuple(tests)


class _NoShrinking:
    """A plugin that ends a property at its first failure, and keeps no examples."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("once", settings.default, phases=phases, database=None)
        settings.load_profile("once")


def start(tests: Tests, cpu_s: int, module: str = "", tree: ast.Module | None = None) -> int:
    """Return the id of a process that ends with pytest's exit code; ``tree`` replaces the module."""
    if pid := os.fork():
        return pid
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        if tree is not None:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            name = f"fairserve.{module.removesuffix('.py').replace('/', '.')}"
            loader, code = importlib.machinery.SourceFileLoader, compile(tree, module, "exec")
            get_code = loader.get_code
            loader.get_code = lambda self, of: code if of == name else get_code(self, of)  # type: ignore
        os._exit(pytest.main([*OPTIONS, *tests], plugins=[_NoShrinking()]))
    finally:
        os._exit(pytest.ExitCode.INTERNAL_ERROR)


class Run:
    """The processes in progress, and what they found."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[str, Mutation]] = {}
        self._cpu_s: dict[Tests, int] = {}
        self.counts: dict[str, Counter[str]] = {}
        self.survivors: list[str] = []

    def test(self, module: str, tree: ast.Module, mutation: Mutation, tests: Tests) -> None:
        """Start the tests with a mutation. Raises SystemExit if they fail without one."""
        if tests not in self._cpu_s:
            self.finish()
            _, status, used = os.wait4(start(tests, 3600), 0)
            if status:
                sys.exit(f"tests of {module} fail without a mutation")
            self._cpu_s[tests] = int(10 + 10 * (used.ru_utime + used.ru_stime))
        self.finish((os.cpu_count() or 1) - 1)
        old = mutation.put(mutation.new)
        self._running[start(tests, self._cpu_s[tests], module, tree)] = module, mutation
        mutation.put(old)

    def finish(self, left: int = 0) -> None:
        """Wait until at most ``left`` processes are in progress."""
        while len(self._running) > left:
            pid, status = os.wait()
            module, mutation = self._running.pop(pid)
            self.counts[module] += Counter(tested=1, found=int(status != 0))
            if not status:
                self.survivors.append(f"- `{module}` `{mutation.name}`")
                print("not found:", module, mutation.name, flush=True)

    def report(self) -> tuple[float, str]:
        """Return the percentage of tested mutations that were found, and the report."""
        total: Counter[str] = sum(self.counts.values(), Counter())
        score = 100 * total["found"] / max(1, total["tested"])
        lines = ["| module | mutations | tested | found |\n|---|---|---|---|"]
        for module, count in [*sorted(self.counts.items()), ("all", total)]:
            lines += [f"| {module} | {count['all']} | {count['tested']} | {count['found']} |"]
        return score, "\n".join([*lines, "\nNot found:\n", *sorted(self.survivors)])


def main() -> int:
    """Test the sample and print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=("",))
    parser.add_argument("--least", type=float, default=0.0)
    given = parser.parse_args()
    run = Run()
    for module, tests in modules(tuple(given.only)):
        tree = ast.parse((ROOT / module).read_text())
        run.counts[module] = Counter(all=len(found := mutations(tree)))
        for each in found:
            digest = hashlib.sha256(f"{given.seed} {module} {each.name}".encode()).digest()
            if int.from_bytes(digest[:6]) < given.share * 2**48:
                run.test(module, tree, each, tests)
    run.finish()
    score, report = run.report()
    print(f"{score:.1f} % of the tested mutations are found.\n\n{report}")
    return int(score < given.least)


if __name__ == "__main__":
    raise SystemExit(main())
