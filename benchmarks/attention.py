"""Times packed attention, forward and backward, one thread: `python benchmarks/attention.py`; see attention.md."""

from __future__ import annotations

import random
import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor

from elasmo.model.attention import Attention, NaivePackedAttention, PackedAttention

ROUNDS = 9


class MaskedAttention:
    """One SDPA call over the whole row with a mask of each sample's lower triangle."""

    def __init__(self, lengths: list[int]) -> None:
        self.mask = NaivePackedAttention(lengths).mask

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self.mask, enable_gqa=True)


class RepeatedAttention:
    """Keys and values repeated for every query head, then SDPA by sample."""

    def __init__(self, lengths: list[int]) -> None:
        self.inner = PackedAttention(lengths, "by_sample")

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        group = query.shape[1] // key.shape[1]
        return self.inner.attend(layer, query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1))


def lengths(seed: int, count: int, low: int, high: int) -> list[int]:
    return [random.Random(seed * 1000 + i).randint(low, high) for i in range(count)]


ROWS = {  # heads, key heads, head size, samples
    "16 of 12-60": (4, 2, 32, lengths(0, 16, 12, 60)),
    "64 of 8-64": (12, 4, 64, lengths(1, 64, 8, 64)),
    "16 of 32-512": (12, 4, 64, lengths(2, 16, 32, 512)),
    "3 of 1024": (12, 4, 64, [1024] * 3),
}


def milliseconds(attention: Attention, leaves: list[Tensor], gradient: Tensor) -> float:
    for leaf in leaves:
        leaf.grad = None
    started = time.perf_counter()
    attention.attend(0, *leaves).backward(gradient)
    return (time.perf_counter() - started) * 1000


def main() -> None:
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.bfloat16):
        for name, (heads, kv_heads, size, samples) in ROWS.items():
            seq = sum(samples)
            q, k, v, gradient = (
                torch.randn(1, seq, h, size, dtype=dtype).transpose(1, 2) for h in (heads, kv_heads, kv_heads, heads)
            )
            leaves = [x.requires_grad_() for x in (q, k, v)]
            kinds: dict[str, Attention] = {
                "by_sample": PackedAttention(samples, "by_sample"),
                "by_block": PackedAttention(samples, "by_block"),
                "repeated": RepeatedAttention(samples),
                "masked": MaskedAttention(samples),
                "naive": NaivePackedAttention(samples),
            }
            times: dict[str, list[float]] = {kind: [] for kind in kinds}
            for number in range(ROUNDS + 1):
                for kind, attention in kinds.items():
                    if number > 3 and kind in ("masked", "naive"):
                        continue  # seconds a call
                    took = milliseconds(attention, leaves, gradient)
                    times[kind] += [took] if number else []  # the first round warms up
            cells = (f"{statistics.median(t):.1f} ({min(t):.1f}-{max(t):.1f})" for t in times.values())
            print(f"| {str(dtype)[6:]} | {name} | {seq} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
