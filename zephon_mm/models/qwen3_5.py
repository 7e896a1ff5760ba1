"""Qwen3.5 (dense and mixture of experts): Qwen3-VL's layout; some layers are linear attention.

Those layers carry a state from token to token, so positions don't keep documents apart. They are
told by ``seq_idx`` (the convolution) and ``cu_seq_lens_q`` (the gated delta rule), and only their
kernels heed these: install ``causal-conv1d`` and ``flash-linear-attention``. Without them
transformers 5.24 refuses packed rows, as it should: its own code knows of neither.

The delta rule's kernel takes ``cu_seq_lens`` for one row only, so a batch's rows are laid end to
end: every tensor is [1, R·S]. Labels and losses are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .qwen3_vl import Qwen3VL

if TYPE_CHECKING:
    from ..batch import Batch


class Qwen3_5(Qwen3VL):
    """The family ``qwen3_5``."""

    name: ClassVar[str] = "qwen3_5"

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        inputs = super().model_inputs(batch)
        for name in ("input_ids", "labels"):
            inputs[name] = inputs[name].reshape(1, -1)
        inputs["position_ids"] = batch.position_ids.reshape(len(batch.position_ids), 1, -1)
        lengths = batch.cu_seq_lens.diff()
        numbers = lengths.new_tensor(range(len(lengths)))
        inputs["seq_idx"] = numbers.repeat_interleave(lengths)[None]
        return inputs
