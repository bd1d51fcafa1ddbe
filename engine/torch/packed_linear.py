"""Linear layers of a CPU model, with weights in oneDNN's fastest layout.

Measured on two cores of an AMD Zen 5 in float32, they are 2 to 4 times as fast as the plain layer,
most at 4 to 32 rows, since the plain product reads weights in an order that fits no cache
(``docs/decisions/0010-forward-pass-and-overlap.md``). This is the operator that
``torch.compile`` uses in frozen models.

A new number of rows costs about a millisecond once per shape of a layer, when its code is
generated, and torch keeps the last thousand of them. So passes are padded to a few numbers of rows.
"""

from __future__ import annotations

import logging

import torch

_log = logging.getLogger(__name__)

_LEAST_ELEMENTS = 1 << 17
"""Minimum elements of a weight: for smaller ones, the operator's 10 us outweigh its gain."""
_TYPICAL_ROWS = 32
"""Number of rows for which the layout is chosen; it is near the best for others, too."""


def packed_types() -> tuple[torch.dtype, ...]:
    """Return the types that oneDNN packs here; bfloat16 needs a processor with AVX-512 or better."""
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return (torch.float32, torch.bfloat16)
    return (torch.float32,)


def padded_rows(rows: int) -> int:
    """Return the padded rows of a pass: those of a single decode unchanged, others a multiple of 8.

    Measured on a model of 100M parameters: 1 ms for the padding, 7 ms for a new number.
    """
    return rows if rows <= _TYPICAL_ROWS else -(-rows // 8) * 8


class PackedLinear(torch.nn.Module):
    """Replacement of a linear layer, without a reference to it: [..., in] -> [..., out]."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = torch.empty_like(weight, device="meta")
        """Weight without values, which only has the shape and type."""
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Compute the linear layer."""
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._packed, self.bias, "none", [], ""
        )
        return result


def pack_linears(model: torch.nn.Module) -> int:
    """Replace the large linear layers of a model in CPU memory; return their number.

    The original weights are freed unless they are used elsewhere, as tied embeddings are. Returns 0
    if torch has no oneDNN.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        _log.warning("this torch has no oneDNN: linear layers are not packed, and are slower")
        return 0
    packed, types = 0, packed_types()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and _is_worth_it(child.weight, types):
                setattr(parent, name, PackedLinear(child))
                packed += 1
    return packed


def _is_worth_it(weight: torch.Tensor, types: tuple[torch.dtype, ...]) -> bool:
    small = weight.numel() < _LEAST_ELEMENTS
    return weight.device.type == "cpu" and weight.dtype in types and not small
