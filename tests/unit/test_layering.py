"""The layering of CONTRIBUTING.md, checked on the syntax trees of every file."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ["interactions", "throttling", "scheduling", "engine", "platform"]
SERVER_ONLY = {"fastapi", "sqlalchemy", "celery", "redis", "alembic", "psycopg"}
CORE = {"interactions", "throttling", "scheduling"}
CORE_FORBIDDEN = {"time", "asyncio", "socket", "threading", "aiohttp", "httpx", "starlette", "zmq"}


def python_files():
    return sorted(path for top in [*LAYERS, "migrations"] for path in (ROOT / top).rglob("*.py"))


def imports(path):
    """Yield (line, dotted module) of every import in a file, function bodies included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.lineno, node.module or ""
            if node.module == "fairserve":
                for alias in node.names:
                    yield node.lineno, f"fairserve.{alias.name}"


@pytest.mark.parametrize("path", python_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_arrow(path):
    parts = path.relative_to(ROOT).parts
    layer = parts[0]
    for line, module in imports(path):
        where = f"{path.relative_to(ROOT)}:{line} imports {module}"
        top = module.split(".")[0]
        assert top not in set(LAYERS) - {"platform"}, f"{where}: without the fairserve. prefix"
        if layer in LAYERS:
            if module.startswith("fairserve."):
                target = module.split(".")[1]
                if target in LAYERS:
                    assert LAYERS.index(target) <= LAYERS.index(layer), where
            if layer != "platform":
                assert top not in SERVER_ONLY, where
            if layer in CORE:
                assert top not in CORE_FORBIDDEN, f"{where}: the core is sans-IO"
            if top in {"torch", "safetensors"}:
                assert parts[:2] == ("engine", "torch"), where
            if top in {"transformers", "tokenizers"}:
                assert parts[:2] == ("engine", "torch") or layer == "platform", where
            if top == "vllm":
                assert parts[:2] == ("engine", "vllm"), where


@pytest.mark.parametrize(
    "path", sorted((ROOT / "src/fairserve").glob("*.py")), ids=lambda p: p.name
)
def test_what_agents_import_needs_no_server(path):
    for line, module in imports(path):
        ours = ("fairserve.interactions.identity", "fairserve.openai_calls")
        own = module.startswith(ours)
        assert own or module.split(".")[0] in sys.stdlib_module_names, f"{path}:{line}: {module}"


def test_the_walk_finds_files():
    layers = {path.relative_to(ROOT).parts[0] for path in python_files()}
    assert set(LAYERS) <= layers


def test_init_files_import_nothing():
    for path in python_files():
        if path.name == "__init__.py":
            assert not list(imports(path)), path


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
    for path in python_files():
        if path.relative_to(ROOT).parts[0] in CORE:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    assert not (node.value.id == "random" and node.attr != "Random"), path
