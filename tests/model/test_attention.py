"""Packed attention: no sample sees another, every kernel equals the whole matrix of scores, memory grows linearly."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elasmo.model.attention import Attention, Kernel, NaivePackedAttention, PackedAttention, choose_kernel
from elasmo.model.block_attention import ROWS, TOKENS

HEADS, KV_HEADS, SIZE = 4, 2, 8
ON_CPU: list[Kernel] = ["by_sample", "by_block"]
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def inputs(seq: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, ...]:
    """Queries, keys, values and the output's gradient, laid out as a projection makes them."""
    generator = torch.Generator().manual_seed(seed)
    made = [
        torch.randn(1, seq, heads, SIZE, generator=generator, dtype=torch.float64)
        for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)
    ]
    return tuple(x.to(dtype).transpose(1, 2) for x in made)


def results(attention: Attention, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Output and gradients of query, key and value."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors[:3]]
    out = attention.attend(0, *leaves)
    out.backward(tensors[3])
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("kernel", ON_CPU)
@given(lengths=LENGTHS)
@settings(max_examples=40, deadline=None)
def test_values_and_gradients_equal_the_whole_matrix_of_scores(kernel: Kernel, lengths: list[int]) -> None:
    tensors = inputs(sum(lengths))
    ours, oracle = (results(a, tensors) for a in (PackedAttention(lengths, kernel), NaivePackedAttention(lengths)))
    for found, wanted in zip(ours, oracle, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kernel", ON_CPU)
@pytest.mark.parametrize("lengths", [[3 * ROWS + 5, 1, ROWS, ROWS + 1], [TOKENS + 7], [90, 100, 110, 120, 130] * 3])
def test_samples_of_several_blocks_and_full_groups_equal_the_oracle(kernel: Kernel, lengths: list[int]) -> None:
    tensors = inputs(sum(lengths))
    ours, oracle = (results(a, tensors) for a in (PackedAttention(lengths, kernel), NaivePackedAttention(lengths)))
    for found, wanted in zip(ours, oracle, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=2e-7)  # blocks add up in float32


@pytest.mark.parametrize("kernel", ON_CPU)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(lengths=LENGTHS.filter(lambda lengths: len(lengths) > 1), data=st.data())
@settings(max_examples=25, deadline=None)
def test_another_samples_numbers_change_no_bit(
    kernel: Kernel, dtype: torch.dtype, lengths: list[int], data: st.DataObject
) -> None:
    changed = data.draw(st.integers(0, len(lengths) - 1))
    start = sum(lengths[:changed])
    own = torch.zeros(sum(lengths), dtype=torch.bool)
    own[start : start + lengths[changed]] = True
    before, other = inputs(len(own), dtype), inputs(len(own), dtype, seed=1)
    after = tuple(torch.where(own[None, None, :, None], b * 50, a) for a, b in zip(before, other, strict=True))
    attention = PackedAttention(lengths, kernel)
    pairs = list(zip(results(attention, before), results(attention, after), strict=True))
    for a, b in pairs:
        assert torch.equal(a[:, :, ~own], b[:, :, ~own])
    assert not torch.equal(pairs[0][0][:, :, own], pairs[0][1][:, :, own])


@pytest.mark.parametrize("kernel", ON_CPU)
def test_not_a_number_stays_in_its_sample(kernel: Kernel) -> None:
    tensors = inputs(9, torch.float32)
    for x in tensors[:3]:
        x[:, :, 5:7] = float("nan")
    for found in results(PackedAttention([5, 2, 2], kernel), tensors):
        assert bool(torch.isfinite(found[:, :, :5]).all()) and bool(torch.isfinite(found[:, :, 7:]).all())


def test_bfloat16_by_block_is_as_near_to_exact_as_torchs_kernel() -> None:
    lengths = [70, 30, 200, 45]
    half = inputs(sum(lengths), torch.bfloat16)
    exact = results(NaivePackedAttention(lengths), tuple(x.double() for x in half))
    block, sample = (results(PackedAttention(lengths, kernel), half) for kernel in ON_CPU[::-1])
    for ours, theirs, wanted in zip(block, sample, exact, strict=True):
        error, reference = ((x.double() - wanted).norm() / wanted.norm() for x in (ours, theirs))
        assert error < 0.01 and error < 2 * reference


@pytest.mark.parametrize(
    ("device", "dtype", "head_size", "kernel"),
    [
        ("cpu", torch.float32, 64, "by_sample"),
        ("cpu", torch.float16, 64, "by_sample"),
        ("cpu", torch.bfloat16, 64, "by_block"),
        ("cuda", torch.bfloat16, 64, "flash"),
        ("cuda", torch.float16, 256, "flash"),
        ("cuda", torch.float32, 64, "by_sample"),
        ("cuda", torch.bfloat16, 60, "by_sample"),
        ("cuda", torch.bfloat16, 264, "by_sample"),
    ],
)
def test_the_kernel_follows_from_device_dtype_and_head(
    device: str, dtype: torch.dtype, head_size: int, kernel: Kernel
) -> None:
    assert choose_kernel(device, dtype, head_size) == kernel


def test_flash_attention_takes_our_shapes() -> None:
    """On meta tensors, which know shapes alone: the kernel itself needs CUDA."""
    tensors = tuple(x.to("meta", torch.bfloat16) for x in inputs(9))
    out, *gradients = results(PackedAttention([4, 5], "flash"), tensors)
    assert [x.shape for x in (out, *gradients)] == [x.shape for x in (tensors[0], *tensors[:3])]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_the_chosen_kernel_equals_the_oracle(dtype: torch.dtype) -> None:
    lengths = [70, 1, 200, 45]
    tensors = inputs(sum(lengths), dtype)
    exact = results(NaivePackedAttention(lengths), tuple(x.double() for x in tensors))
    found = results(PackedAttention(lengths), tuple(x.cuda() for x in tensors))
    for ours, wanted in zip(found, exact, strict=True):
        error = (ours.double().cpu() - wanted).norm() / wanted.norm()
        assert error < (0.02 if dtype == torch.bfloat16 else 1e-5)


PEAK = """
import sys, torch
from pathlib import Path
from elasmo.model.attention import NaivePackedAttention, PackedAttention
kernel, seq, dtype = sys.argv[1], int(sys.argv[2]), getattr(torch, sys.argv[3])
torch.set_num_threads(1)
lengths = [64] * (seq // 64)
naive = kernel == "naive"
def step(lengths):
    attention = NaivePackedAttention(lengths) if naive else PackedAttention(lengths, kernel)
    q, k, v = (torch.randn(1, heads, sum(lengths), 32, dtype=dtype, requires_grad=True) for heads in (4, 2, 2))
    attention.attend(0, q, k, v).sum().backward()
def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])
step(lengths[:2])
Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is resident
before = peak()
step(lengths)
print((peak() - before) / 1024)
"""


def peak_mib(kernel: str, seq: int, dtype: str) -> float:
    """Growth of a process's resident memory over one forward and backward pass."""
    command = [sys.executable, "-c", PEAK, kernel, str(seq), dtype]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.full
@pytest.mark.parametrize(("kernel", "dtype"), [("by_sample", "float32"), ("by_block", "bfloat16")])
def test_memory_grows_with_the_sequence_and_not_with_its_square(kernel: Kernel, dtype: str) -> None:
    short, long = peak_mib(kernel, 16_384, dtype), peak_mib(kernel, 65_536, dtype)
    assert 2 < long / short < 6  # four times the tokens
    whole = [peak_mib("naive", seq, dtype) for seq in (1024, 4096)]
    assert whole[1] / whole[0] > 6 and whole[1] > long  # a sixteenth of the tokens, and more memory
