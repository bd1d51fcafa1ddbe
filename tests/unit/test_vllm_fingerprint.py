"""The fingerprint lets `make test-vllm` decide whether to run the second vLLM release."""

import ast
import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "0.33.0"
TREE = {
    "constraints-vllm.txt": "torch==2\n",
    "engine/__init__.py": "",
    "engine/other.py": "from fairserve.engine import by_other\n",
    "engine/by_other.py": "",
    "engine/vllm/__init__.py": "",
    "engine/vllm/scheduler.py": "import vllm\nfrom fairserve.scheduling.local import dlpm\n",
    "scheduling/__init__.py": "",
    "scheduling/local/__init__.py": "",
    "scheduling/local/dlpm.py": "def late():\n    import fairserve.scheduling.order as order\n",
    "scheduling/order.py": "import json\n",
    "src/fairserve/__init__.py": "",
    "tests/conftest.py": "",
    "tests/support/vllm_world.py": "import fairserve.engine.vllm.scheduler\nimport plain\n",
    "tests/support/plain.py": "",
    "tests/support/unused.py": "",
    "tests/vllm/conftest.py": "",
    "tests/vllm/test_queue.py": "import vllm_world\n",
    "tests/vllm/engine/test_servers.py": "import fairserve.engine.other\nimport unused\n",
}
"""A minimal repository: each file by its path."""

OUTSIDE = {
    "engine/other.py",
    "engine/by_other.py",
    "tests/support/unused.py",
    "tests/vllm/engine/test_servers.py",
}
"""Files that only the first release runs."""


@pytest.fixture(scope="module")
def script():
    path = ROOT / "tests/vllm/fingerprint.py"
    spec = importlib.util.spec_from_file_location("vllm_fingerprint", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path):
    for path, text in TREE.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for package in ("engine", "scheduling"):
        (tmp_path / "src/fairserve" / package).symlink_to(f"../../{package}")
    return tmp_path


def test_the_files_are_those_run_by_the_second_release(script, tree):
    files = script.fingerprint(tree, RELEASE)["files"]
    assert set(files) == set(TREE) - OUTSIDE


@pytest.mark.parametrize("path", sorted(TREE))
def test_a_change_counts_if_the_second_release_runs_the_file(script, tree, path):
    before = script.fingerprint(tree, RELEASE)
    with (tree / path).open("a") as file:
        file.write("# changed\n")
    lines = script.differences(script.fingerprint(tree, RELEASE), before)
    assert lines == ([] if path in OUTSIDE else [f"changed: {path}"])


def test_files_added_by_a_new_import_are_named(script, tree):
    before = script.fingerprint(tree, RELEASE)
    (tree / "scheduling/order.py").write_text("from fairserve.engine.other import thing\n")
    after = script.fingerprint(tree, RELEASE)
    new = ["engine/by_other.py", "engine/other.py"]
    changed = ["changed: scheduling/order.py"]
    assert script.differences(after, before) == [*(f"new: {path}" for path in new), *changed]
    assert script.differences(before, after) == [*(f"gone: {path}" for path in new), *changed]


def test_another_release_is_a_difference(script, tree):
    before = script.fingerprint(tree, RELEASE)
    lines = script.differences(script.fingerprint(tree, "0.34.0"), before)
    assert lines == ["release: 0.33.0 before, 0.34.0 now"]


def test_take_and_compare_commands(script, tree, monkeypatch, capsys):
    """The exit status decides whether the second release is run, and the text gives the reason."""
    monkeypatch.setattr(script, "ROOT", tree)
    taken, committed = tree / "taken.json", tree / script.COMMITTED
    script.main("take", taken, RELEASE)
    assert script.main("compare", taken) == 1
    assert "fingerprint.json is missing" in capsys.readouterr().out
    committed.write_bytes(taken.read_bytes())
    assert script.main("compare", taken) == 0
    assert "vLLM 0.33.0 is not run" in capsys.readouterr().out
    (tree / "scheduling/order.py").write_text("\n")
    assert script.main("compare", taken) == 0, "what was taken is what the tests ran"
    script.main("take", taken, RELEASE)
    assert script.main("compare", taken) == 1
    assert "vLLM 0.33.0 is run" in (text := capsys.readouterr().out)
    assert text.splitlines()[-1] == "changed: scheduling/order.py"
    with pytest.raises(SystemExit, match="unknown command 'tkae'"):
        script.main("tkae", taken)


def test_the_fingerprint_of_this_repository(script):
    """The plug-in and the policies belong to it; servers, the platform and torch do not."""
    paths = set(script.closure(ROOT))
    plug_in = {path.relative_to(ROOT).as_posix() for path in (ROOT / "engine/vllm").glob("*.py")}
    assert plug_in < set(paths)
    expected = {
        "scheduling/local/dlpm.py",
        "src/fairserve/__init__.py",
        "tests/conftest.py",
        "tests/support/both_dlpm.py",
        "tests/support/plain_dlpm.py",
        "tests/support/vllm_world.py",
        "tests/vllm/test_reference.py",
    }
    assert expected < set(paths)
    outside = ("platform/", "migrations/", "engine/torch/", "tests/vllm/engine/", "tests/unit/")
    assert not [path for path in paths if path.startswith(outside)]
    committed = json.loads((ROOT / script.COMMITTED).read_text())
    assert set(committed) == {"release", "files"}


def test_no_module_of_the_closure_is_imported_by_a_computed_name(script):
    """Such an import is not detected; a test of vLLM imports what the registries name."""
    paths = set(script.closure(ROOT))
    assert "benchmarks/policies/registry.py" in paths
    for path in paths - {"throttling/registry.py"}:
        tree = ast.parse((ROOT / path).read_text())
        names = {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
        names |= {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
        assert not names & {"import_module", "__import__"}, path
