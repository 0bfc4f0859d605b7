"""Attention of one new token a sequence over 256 tokens of KV, by several ways to compute it; milliseconds a layer.

`python benchmarks/decode_attention.py`; prints the second table of `benchmarks/engine.md`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

HEADS, KV_HEADS, TOKENS, DIM, PAGE = 12, 4, 256, 64, 16


def milliseconds(work: Callable[[], object], repeats: int = 15) -> str:
    work()
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        taken.append((time.process_time() - began) * 1e3)
    return f"{statistics.median(taken):.2f} ({min(taken):.2f}-{max(taken):.2f})"


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread, CPU milliseconds")
    print("| dtype | batch | products, folded | SDPA, folded | SDPA, enable_gqa | gathering pages |")
    for dtype in (torch.float32, torch.bfloat16):
        for batch in (1, 8, 32):
            query = torch.randn(batch, HEADS, 1, DIM).to(dtype)
            keys, values = torch.randn(2, batch, KV_HEADS, TOKENS, DIM).to(dtype)
            folded = query.view(batch, KV_HEADS, HEADS // KV_HEADS, DIM)
            mask = torch.ones(batch, 1, 1, TOKENS, dtype=torch.bool)
            bias = torch.zeros(batch, 1, 1, TOKENS, dtype=dtype)
            pages = torch.randn(2, 1000, PAGE, KV_HEADS, DIM).to(dtype)
            tables = torch.randint(0, 1000, (batch, TOKENS // PAGE))

            def products(folded=folded, keys=keys, values=values, bias=bias):  # type: ignore[no-untyped-def]
                scores = (folded * DIM**-0.5 @ keys.transpose(2, 3) + bias).softmax(-1, dtype=torch.float32)
                return scores.to(values.dtype) @ values

            def fused(folded=folded, keys=keys, values=values, mask=mask):  # type: ignore[no-untyped-def]
                return F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)

            def grouped(query=query, keys=keys, values=values, mask=mask):  # type: ignore[no-untyped-def]
                return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)

            def gather(pages=pages, tables=tables):  # type: ignore[no-untyped-def]
                return pages[0][tables], pages[1][tables]

            cells = [milliseconds(work) for work in (products, fused, grouped, gather)]
            print(f"| {str(dtype).removeprefix('torch.')} | {batch} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
