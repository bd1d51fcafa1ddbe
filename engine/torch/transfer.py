"""Transfers of small arrays between host and device, without needless waits.

On a GPU they use pinned memory, since a copy from or to other memory may wait for everything that
was launched before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy the array to a device; on the CPU the tensor shares its memory."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class TransferArrival:
    """A tensor that is being copied to the host."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._host = tensor
        if tensor.device.type == "cuda":
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def wait(self) -> list[Any]:
        """Wait for the copy and return the numbers."""
        if self._event is not None:
            self._event.synchronize()
        numbers: list[Any] = self._host.tolist()
        return numbers
