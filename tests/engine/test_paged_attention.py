"""Attention over scattered pages equals dense attention over the same keys and values."""

from __future__ import annotations

import math

import torch

from elasmo.engine.paged_attention import CapturingAttention, PagedAttention

HEADS, KV_HEADS, DIM, SIZE, BLOCKS = 4, 2, 8, 3, 12


def dense(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """query [heads, dim], keys and values [tokens, kv_heads, dim] -> [heads, dim], in float64."""
    out = []
    for head in range(HEADS):
        group = head // (HEADS // KV_HEADS)
        scores = keys[:, group].double() @ query[head].double() / math.sqrt(DIM)
        out.append(scores.softmax(0) @ values[:, group].double())
    return torch.stack(out)


def test_scattered_pages_equal_a_dense_cache() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths, pages_of = [0, 2, 3, 7], [[4], [9], [11, 0], [2, 7, 5]]
    pages = torch.full((2, 2, BLOCKS, SIZE, KV_HEADS, DIM), 1e4)  # what other sequences left must not be seen
    caches = [torch.randn(2, length, KV_HEADS, DIM, generator=generator) for length in lengths]
    for cache, held in zip(caches, pages_of, strict=True):
        for token in range(cache.shape[1]):
            pages[1, :, held[token // SIZE], token % SIZE] = cache[:, token]
    tables = torch.tensor([held + [0] * (3 - len(held)) for held in pages_of])
    query = torch.randn(4, HEADS, 1, DIM, generator=generator)
    key, value = torch.randn(2, 4, KV_HEADS, 1, DIM, generator=generator)
    got = PagedAttention(pages, tables, torch.tensor(lengths)).attend(1, query, key, value)
    for row, cache in enumerate(caches):
        keys = torch.cat([cache[0], key[row, :, 0][None]])
        values = torch.cat([cache[1], value[row, :, 0][None]])
        assert torch.allclose(got[row, :, 0].double(), dense(query[row, :, 0], keys, values), atol=1e-5)
        place = pages_of[row][lengths[row] // SIZE], lengths[row] % SIZE
        assert torch.equal(pages[1, 0][place], key[row, :, 0]) and torch.equal(pages[1, 1][place], value[row, :, 0])
    assert (pages[0] == 1e4).all()


def test_prefill_keeps_keys_and_values_of_every_layer() -> None:
    generator = torch.Generator().manual_seed(1)
    attention = CapturingAttention()
    kept = []
    for layer in range(2):
        query = torch.randn(1, HEADS, 5, DIM, generator=generator)
        key, value = torch.randn(2, 1, KV_HEADS, 5, DIM, generator=generator)
        kept.append((key, value))
        out = attention.attend(layer, query, key, value)
        for token in range(5):
            keys, values = key[0, :, : token + 1].transpose(0, 1), value[0, :, : token + 1].transpose(0, 1)
            assert torch.allclose(out[0, :, token].double(), dense(query[0, :, token], keys, values), atol=1e-5)
    for captured, (key, value) in zip(attention.layers, kept, strict=True):
        assert torch.equal(captured[0].transpose(0, 1), key[0]) and torch.equal(captured[1].transpose(0, 1), value[0])
