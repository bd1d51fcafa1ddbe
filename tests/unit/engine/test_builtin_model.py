"""The built-in model needs no download, is complete at any time, and answers up to its token limit."""

import os
import subprocess
import sys

import pytest

from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME, ensure_builtin_model

WRITE = """
import sys
from fairserve.engine.torch.builtin_model import ensure_builtin_model
folder = ensure_builtin_model()
assert "torch" not in sys.modules
print(folder, sorted(path.name for path in folder.iterdir()), sep="\\n")
"""


def start(cache):
    return subprocess.Popen(
        [sys.executable, "-c", WRITE],
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_processes_write_one_complete_folder_without_torch(tmp_path):
    processes = [start(tmp_path) for _ in range(3)]
    outputs = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(outputs) == 1
    (models,) = (tmp_path / "fairserve").iterdir()
    (folder,) = models.iterdir()
    assert folder.name.startswith(BUILTIN_MODEL_NAME)


def test_the_model_is_reproducible_and_missing_files_are_restored(tmp_path, monkeypatch):
    here = contents(ensure_builtin_model())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = ensure_builtin_model()
    assert contents(folder) == here
    (folder / "tokenizer.json").unlink()
    assert ensure_builtin_model() == folder
    assert contents(folder) == here
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_an_unwritable_cache_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        ensure_builtin_model()


def test_the_chat_template_marks_every_message(builtin):
    text = builtin.tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert text == "<|system|>Be kind.<|end|><|user|>Hi<|end|><|assistant|>"
    ids = builtin.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len("Be kind.Hi") + 5


def test_outputs_reach_their_limit_in_printable_text(make_bench, builtin):
    bench = make_bench(builtin)
    for index in range(4):
        tokens = builtin.tokenizer(f"Question {index}?")["input_ids"]
        bench.add(f"s{index}", tokens, 60, temperature=1.0, seed=index)
    bench.run()
    for index in range(4):
        text = bench.text(f"s{index}")
        assert bench.finish_reason(f"s{index}") == "length"
        assert len(text) == 60
        assert text.isascii()
        assert text.isprintable()
        assert len(set(text)) > 10
