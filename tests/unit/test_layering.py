"""The layering of CONTRIBUTING.md, checked on the syntax tree of every file."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ["interactions", "throttling", "scheduling", "engine", "platform"]
SERVER_ONLY = {"fastapi", "sqlalchemy", "celery", "redis", "alembic", "psycopg"}
CORE = {"interactions", "throttling", "scheduling"}
CORE_FORBIDDEN = {"time", "asyncio", "socket", "threading", "aiohttp", "httpx", "starlette", "zmq"}


def statements(tree):
    """Every statement of a module, those of its functions included."""
    found = [tree]
    for node in found:  # grows while it is walked
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
    """Every file of the product by its path in the repository, read once."""
    files = sorted(path for top in [*LAYERS, "migrations"] for path in (ROOT / top).rglob("*.py"))
    files += sorted((ROOT / "src/fairserve").glob("*.py"))
    return {path.relative_to(ROOT): Source(path.read_text()) for path in files}


def violation(parts, module):
    """Return the rule that the import of a module by the file at these path parts breaks, or None."""
    layer, top = parts[0], module.split(".")[0]
    if module.startswith("."):
        return "imports are absolute"
    if layer == "src":
        own = module.startswith(("fairserve.interactions.identity", "fairserve.openai_calls"))
        return None if own or top in sys.stdlib_module_names else "agents need no server"
    if top in set(LAYERS) - {"platform"}:
        return "the fairserve. prefix is missing"
    if layer not in LAYERS:
        return None
    torch = parts[:2] == ("engine", "torch")
    target = module.split(".")[1] if module.startswith("fairserve.") else None
    rules = [
        (target in LAYERS[LAYERS.index(layer) + 1 :], "a layer imports only those before it"),
        (layer != "platform" and top in SERVER_ONLY, "only the platform is a server"),
        (layer in CORE and top in CORE_FORBIDDEN, "the core is sans-IO"),
        (top in {"torch", "safetensors"} and not torch, "torch stays in engine/torch"),
        (
            top in {"transformers", "tokenizers"} and not (torch or layer == "platform"),
            "tokenizers stay in engine/torch and platform",
        ),
        (top == "vllm" and parts[:2] != ("engine", "vllm"), "vLLM stays in engine/vllm"),
    ]
    return next((rule for broken, rule in rules if broken), None)


def test_imports_follow_the_arrow():
    broken = [
        f"{path}:{line} imports {module}: {rule}"
        for path, source in sources().items()
        for line, module in source.imports
        if (rule := violation(path.parts, module))
    ]
    assert not broken, "\n".join(broken)


def test_each_rule_finds_what_breaks_it():
    broken = [
        ("interactions/call.py", "fairserve.throttling.base"),
        ("throttling/oit.py", "fairserve.scheduling"),
        ("scheduling/feed.py", "fairserve.engine.wire.client"),
        ("engine/wire/client.py", "fairserve.platform.base.errors"),
        ("engine/wire/client.py", "sqlalchemy.orm"),
        ("engine/wire/client.py", "torch"),
        ("engine/vllm/plugin.py", "tokenizers"),
        ("platform/server/app.py", "vllm"),
        ("platform/server/app.py", "engine.client"),
        ("migrations/env.py", "engine.client"),
        ("scheduling/feed.py", "asyncio"),
        ("scheduling/feed.py", ".base"),
        ("src/fairserve/client.py", "fairserve.platform.server.app"),
        ("src/fairserve/client.py", "httpx"),
    ]
    allowed = [
        ("platform/server/app.py", "fairserve.engine.wire.client"),
        ("platform/server/app.py", "fastapi"),
        ("platform/server/app.py", "tokenizers"),
        ("platform/server/app.py", "platform"),
        ("engine/torch/model.py", "torch.nn"),
        ("engine/vllm/plugin.py", "vllm"),
        ("engine/wire/client.py", "asyncio"),
        ("scheduling/feed.py", "fairserve.throttling.base"),
        ("src/fairserve/client.py", "fairserve.interactions.identity"),
        ("src/fairserve/client.py", "urllib.request"),
    ]
    found = [
        (path, module) for path, module in broken + allowed if violation(Path(path).parts, module)
    ]
    assert found == broken


def test_the_walk_finds_every_import():
    assert {*LAYERS, "migrations", "src"} == {path.parts[0] for path in sources()}
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


def test_the_core_uses_no_randomness_of_its_own():
    broken = [
        f"{path}:{line}"
        for path, source in sources().items()
        if path.parts[0] in CORE
        for line in source.random_lines
    ]
    assert not broken
    text = "x = [random.random().real, rng.random(), random.Random(1)]\ny = f(a.b, random.choice)"
    assert sorted(Source(text).random_lines) == [1, 2]
