"""The peak memory of a phase includes freed memory."""

import os

import pytest
import torch

from fairserve.engine.torch.bench import memory
from fairserve.engine.torch.bench.memory import peak_bytes

CPU = torch.device("cpu")
MIB = 2**20


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="no peak to set back here"
)
def test_the_peak_includes_memory_freed_within_the_phase():
    def phase():  # the allocator may keep blocks of up to 32 MiB after they are freed
        torch.ones(64 * MIB // 4)
        torch.ones(128 * MIB // 4)

    assert 120 * MIB < peak_bytes(phase, CPU) < 170 * MIB
    assert peak_bytes(lambda: None, CPU) < 16 * MIB


def test_a_phase_runs_without_memory_statistics(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_RESET", tmp_path / "missing" / "clear_refs")
    ran = []
    assert peak_bytes(lambda: ran.append(1), CPU) is None
    assert ran == [1]
