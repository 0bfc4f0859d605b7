"""Attention of a step over scattered pages equals dense attention, row by row, in float64."""

from __future__ import annotations

import math

import pytest
import torch

from elasmo.engine.contiguous_kv import ContiguousKV
from elasmo.engine.step_attention import Row, StepAttention

HEADS, KV_HEADS, DIM, SIZE, BLOCKS, LAYERS = 4, 2, 8, 3, 14, 2
TABLES = {"a": [4, 9, 1], "b": [11, 0], "c": [2, 7, 5], "new": [3, 6], "again": [8, 10, 12]}
STARTS = {"a": 6, "b": 2, "c": 7, "new": 0, "again": 4}
TOKENS = {"a": 1, "b": 1, "c": 1, "new": 5, "again": 3}


def dense(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """query [heads, dim], keys and values [tokens, kv_heads, dim] -> [heads, dim]."""
    out = []
    for head in range(HEADS):
        group = head // (HEADS // KV_HEADS)
        scores = keys[:, group].double() @ query[head].double() / math.sqrt(DIM)
        out.append(scores.softmax(0) @ values[:, group].double())
    return torch.stack(out)


@pytest.mark.parametrize("order", [["a", "b", "c"], ["c", "a"], ["b"]])
@pytest.mark.parametrize("slots", [True, False], ids=["contiguous", "pages"])
def test_every_row_sees_its_own_tokens_and_no_others(slots: bool, order: list[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    pages = torch.full((LAYERS, 2, BLOCKS, SIZE, KV_HEADS, DIM), torch.nan)  # what others left must not be seen
    past = {name: torch.randn(LAYERS, 2, start, KV_HEADS, DIM, generator=generator) for name, start in STARTS.items()}
    for name, cache in past.items():
        for token in range(STARTS[name]):
            pages[:, :, TABLES[name][token // SIZE], token % SIZE] = cache[:, :, token]
    contiguous = ContiguousKV(pages, 2, most_tokens=1000 if slots else 0)
    for name in ("x", "b", "c"):  # c moves into the place of x, which leaves
        contiguous.slot(name, TABLES.get(name, [4]), STARTS.get(name, 3))
    contiguous.leave("x")
    placed = sorted(
        order, key=lambda name: -1 if (slot := contiguous.slot(name, TABLES[name], STARTS[name])) is None else slot
    )
    names = [*placed, "new", "again"]
    rows = [
        Row(
            TABLES[name],
            STARTS[name],
            TOKENS[name],
            contiguous.slot(name, TABLES[name], STARTS[name]) if name in order else None,
        )
        for name in names
    ]
    attention = StepAttention(pages, contiguous, rows)
    total = sum(TOKENS[name] for name in names)
    for layer in range(LAYERS):
        query = torch.randn(1, HEADS, total, DIM, generator=generator)
        key, value = torch.randn(2, 1, KV_HEADS, total, DIM, generator=generator)
        got = attention.attend(layer, query, key, value)
        at = 0
        for name in names:
            for token in range(TOKENS[name]):
                keys = torch.cat([past[name][layer, 0], key[0, :, at : at + token + 1].transpose(0, 1)])
                values = torch.cat([past[name][layer, 1], value[0, :, at : at + token + 1].transpose(0, 1)])
                wanted = dense(query[0, :, at + token], keys, values)
                assert torch.allclose(got[0, :, at + token].double(), wanted, atol=1e-5), (name, token)
                place = STARTS[name] + token
                page = TABLES[name][place // SIZE], place % SIZE
                assert torch.equal(pages[layer, 0][page], key[0, :, at + token])
                assert torch.equal(pages[layer, 1][page], value[0, :, at + token])
            at += TOKENS[name]


def test_contiguous_memory_is_bounded_and_returned() -> None:
    pages = torch.zeros(1, 2, 40, 4, 1, 2)
    contiguous = ContiguousKV(pages, 3, most_tokens=256)
    table = list(range(40))
    assert [contiguous.slot(name, table, 30) for name in "abcd"] == [0, 1, 2, 3]
    assert contiguous.tokens <= 256
    assert contiguous.slot("e", table, 30) is None  # it decodes from its pages
    assert contiguous.slot("d", table, 64) is None  # so does one that grew too long for all of them
    contiguous.leave("a")
    contiguous.leave("c")
    assert contiguous.slot("b", table, 31) == 0 and contiguous.slot("b", table, 100) == 0
    assert contiguous.tokens <= 256
    contiguous.leave("b")
    contiguous.leave("nobody")
    assert contiguous.tokens == 0
