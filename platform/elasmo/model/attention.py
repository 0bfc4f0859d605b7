"""How decoder layers attend. Training attends causally within samples; inference swaps in attention over a KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from elasmo.model.block_attention import block_attention


class Attention(Protocol):
    """One step's attention for all layers.

    `attend` gets rotated queries [batch, heads, seq, head_dim] and keys and values [batch, kv_heads, seq, head_dim] of
    one layer, and returns [batch, heads, seq, head_dim].
    """

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor: ...


class CausalAttention:
    """Every position attends to itself and those before it; with padding on the right no real token sees a pad."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


Kernel = Literal["by_sample", "by_block", "flash"]
"""How packed attention is computed.

by_sample: torch's SDPA for one sample after the other.
by_block: matrix products over blocks of queries of samples of similar length, see `block_attention`.
flash: FlashAttention for variable lengths, all samples in one call.
"""


def choose_kernel(device: str, dtype: torch.dtype, head_size: int) -> Kernel:
    """The fastest exact kernel with memory linear in the sequence, as measured in `benchmarks/attention.md`.

    FlexAttention is never chosen: on a CPU it has no backward pass, and with CUDA FlashAttention does the same.

    Args:
        device: type of the device, such as `cpu`.
        dtype: of queries, keys and values.
        head_size: dimensions of a head.
    """
    half = dtype in (torch.bfloat16, torch.float16)
    # FlashAttention takes half precision and heads of up to 256 dimensions, in steps of 8.
    if device == "cuda" and half and head_size % 8 == 0 and head_size <= 256:
        return "flash"
    return "by_block" if device == "cpu" and dtype == torch.bfloat16 else "by_sample"


class PackedAttention:
    """Samples stand one after the other in one row; each attends causally within itself and sees no other.

    Args:
        lengths: tokens of each sample; together they are the sequence.
        kernel: how to compute it; chosen by device and dtype when None.
    """

    def __init__(self, lengths: Sequence[int], kernel: Kernel | None = None) -> None:
        self.lengths = [length for length in lengths if length]
        self.kernel = kernel
        self._borders: Tensor | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        kernel = self.kernel or choose_kernel(query.device.type, query.dtype, query.shape[3])
        if kernel == "by_block":
            mixed: Tensor = block_attention(query, key, value, self.lengths)
            return mixed
        return self._flash(query, key, value) if kernel == "flash" else self._by_sample(query, key, value)

    def _by_sample(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if query.is_cuda:
            # CUDA's kernels for float32 know no groups, and without them SDPA computes the whole matrix of scores.
            group = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        parts = zip(*(x.split(self.lengths, dim=2) for x in (query, key, value)), strict=True)
        return torch.cat(
            [F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) for q, k, v in parts], dim=2
        )

    def _flash(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self._borders is None:  # the same for all layers
            self._borders = torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32, device=query.device)
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        longest = max(self.lengths)
        causal = (-1, 0)
        out = varlen_attn(q, k, v, self._borders, self._borders, longest, longest, window_size=causal, enable_gqa=True)
        assert isinstance(out, Tensor)  # only asked for more does it return more
        return out.transpose(0, 1)[None]


class NaivePackedAttention:
    """The oracle of `PackedAttention`: the whole matrix of scores, masked to each sample's own lower triangle."""

    def __init__(self, lengths: Sequence[int]) -> None:
        sample = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        self.mask = (sample[:, None] == sample[None, :]).tril()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
        out: Tensor = scores.masked_fill(~self.mask, float("-inf")).softmax(dim=-1) @ value
        return out
