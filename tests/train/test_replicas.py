"""A replica with a flipped bit is found, whichever bit it is, and named by the majority of its group."""

from __future__ import annotations

import pytest
import torch

from elasmo.train.replicas import Replica, odd_ranks, word_sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_every_single_flipped_bit_changes_the_sum_of_its_tensor_alone(dtype: torch.dtype) -> None:
    tensors = [torch.arange(6).reshape(2, 3).to(dtype), torch.ones(4).to(dtype)]
    before = word_sums(tensors)
    raw = tensors[0].view(-1).view(torch.uint8)
    for byte in range(raw.numel()):
        for bit in range(8):
            raw[byte] ^= 1 << bit
            after = word_sums(tensors)
            assert after[0] != before[0] and after[1] == before[1]
            raw[byte] ^= 1 << bit
    assert word_sums(tensors) == before


def test_a_cut_that_is_not_contiguous_sums_as_its_copy() -> None:
    whole = torch.randn(6, 8)
    assert word_sums([whole[:, 2:5]]) == word_sums([whole[:, 2:5].clone()])
    assert word_sums([]) == ()


def replicas(*groups: tuple[tuple[int, ...], dict[int, tuple[int, ...]]], names: tuple[str, ...]) -> list[Replica]:
    found = {rank: Replica(group, names, sums[rank]) for group, sums in groups for rank in group}
    return [found[rank] for rank in sorted(found)]


def test_the_rank_that_differs_from_most_is_named_with_its_tensor() -> None:
    same = (1, 2, 3)
    sums = {0: same, 1: same, 2: (1, 9, 8), 3: same}
    odd = odd_ranks(replicas(((0, 1, 2, 3), sums), names=("a", "b", "c")))
    assert odd is not None and (odd.ranks, odd.tensor, odd.tensors, odd.majority) == ((2,), "b", 2, True)
    assert odd.sentence(9) == (
        "Silent corruption before step 9: rank 2: other bits of 'b' and 1 other tensors than the ranks that should "
        "hold the same"
    )


def test_two_replicas_that_differ_are_both_named() -> None:
    odd = odd_ranks(replicas(((0, 1), {0: (1,), 1: (2,)}), names=("a",)))
    assert odd is not None and odd.ranks == (0, 1) and not odd.majority
    assert "ranks 0, 1: unlike bits of 'a', with no majority" in odd.sentence(3)


def test_groups_are_compared_apart() -> None:
    """Tensor-parallel ranks hold other parts of a tensor, which are not replicas of each other."""
    even, odd = {0: (1,), 2: (1,), 4: (1,)}, {1: (5,), 3: (5,), 5: (6,)}
    groups = ((0, 2, 4), even), ((1, 3, 5), odd)
    found = odd_ranks(replicas(*groups, names=("a",)))
    assert found is not None and found.ranks == (5,)
    odd[5] = (5,)
    assert odd_ranks(replicas(*groups, names=("a",))) is None
