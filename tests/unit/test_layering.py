"""Import rules that import-linter has no contract for are checked on the syntax tree of every file.

The order of the packages and rooms is in pyproject.toml.
"""

import ast
import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["interactions", "throttling", "scheduling", "engine", "platform"]
POLICIES = "benchmarks/policies"
"""Policies to compare with: servers run them, too, if asked."""
CORE = ("interactions/", "throttling/", "scheduling/", f"{POLICIES}/")


def statements(tree):
    """Return every statement of a module, those of its functions included."""
    found = [tree]
    for node in found:  # grows while it is iterated
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, field, ())
    return found


class Source:
    """Imports of one file as (line, dotted module), and lines that use the module ``random``.

    The tree is not kept.
    """

    def __init__(self, text):
        tree = ast.parse(text)
        self.imports = []
        for node in statements(tree):
            if isinstance(node, ast.Import):
                self.imports += [(node.lineno, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                self.imports.append((node.lineno, "." * node.level + (node.module or "")))
                if node.module == "fairserve":
                    self.imports += [(node.lineno, f"fairserve.{each.name}") for each in node.names]
        self.random_lines = [
            node.lineno
            for node in (ast.walk(tree) if "random." in text else ())
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if node.value.id == "random" and node.attr != "Random"
        ]


@functools.cache
def sources():
    """Return every file of the product by its path in the repository, read once."""
    tops = [*PACKAGES, "migrations", POLICIES]
    files = sorted(path for top in tops for path in (ROOT / top).rglob("*.py"))
    files += sorted((ROOT / "src").glob("fairserve*/*.py"))
    return {path.relative_to(ROOT): Source(path.read_text()) for path in files}


def violation(parts, module):
    """Return the rule that importing ``module`` into the file at this path violates, or None."""
    top = module.split(".")[0]
    if parts[:2] == ("src", "fairserve_client"):  # it has two names: see decision 25
        own = module.startswith(".") and not module.startswith("..")
        return None if own or top in sys.stdlib_module_names else "the client has no dependencies"
    if module.startswith("."):
        return "imports are absolute"
    if parts[0] == "src":
        own = module in ("fairserve_client", "fairserve._client")
        return None if own else "agents need no server"
    if top in {*PACKAGES, "benchmarks", "migrations"} - {"platform"}:
        return "the fairserve. prefix is missing"
    return None


def test_imports_follow_the_rules():
    broken = [
        f"{path}:{line} imports {module}: {rule}"
        for path, source in sources().items()
        for line, module in source.imports
        if (rule := violation(path.parts, module))
    ]
    assert not broken, "\n".join(broken)


def test_each_rule_detects_its_violation():
    broken = [
        ("platform/server/app.py", "engine.client"),
        ("migrations/env.py", "engine.client"),
        ("scheduling/dispatch/feed.py", ".base"),
        ("src/fairserve/client.py", "fairserve.platform.server.app"),
        ("src/fairserve_client/runs.py", "fairserve.interactions.tracking.identity"),
        ("src/fairserve_client/runs.py", "fairserve_client.headers"),
        ("src/fairserve_client/runs.py", "..interactions"),
        ("src/fairserve_client/runs.py", "httpx"),
    ]
    allowed = [
        ("platform/server/app.py", "fairserve.engine.client"),
        ("platform/server/app.py", "platform"),
        ("src/fairserve/client.py", "fairserve._client"),
        ("src/fairserve_client/runs.py", ".headers"),
        ("src/fairserve_client/runs.py", "urllib.request"),
    ]
    found = [
        (path, module) for path, module in broken + allowed if violation(Path(path).parts, module)
    ]
    assert found == broken


def test_every_import_is_found():
    tops = {path.parts[0] for path in sources()}
    assert tops == {*PACKAGES, "migrations", "src", "benchmarks"}
    text = (
        "import a.b, c\n"
        "async def f():\n try:\n  from d import e\n except E:\n  with x:\n   from . import g\n"
        "if x:\n pass\nelse:\n from fairserve import h\n"
        "match x:\n case 1:\n  import i\n"
    )
    found = [module for _, module in Source(text).imports]
    assert sorted(found) == [".", "a.b", "c", "d", "fairserve", "fairserve.h", "i"]


def test_init_files_import_nothing():
    broken = [
        str(path)
        for path, source in sources().items()
        if path.name == "__init__.py" and path.parts[0] != "src" and source.imports
    ]
    assert not broken


def test_platform_does_not_shadow_the_standard_library():
    assert not (ROOT / "platform" / "__init__.py").exists()
    run = subprocess.run(
        [sys.executable, "-c", "import platform; print(platform.machine())"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip()


def test_the_core_uses_no_global_randomness():
    broken = [
        f"{path}:{line}"
        for path, source in sources().items()
        if path.as_posix().startswith(CORE)
        for line in source.random_lines
    ]
    assert not broken
    text = "x = [random.random().real, rng.random(), random.Random(1)]\ny = f(a.b, random.choice)"
    assert sorted(Source(text).random_lines) == [1, 2]
