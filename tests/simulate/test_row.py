from __future__ import annotations

import pytest

from elasmo.simulate.accelerator import HardwareError
from elasmo.simulate.model import ModelError
from elasmo.simulate.plan import PlanError
from elasmo.simulate.published import CellError, read_table
from elasmo.simulate.row import RowError, measured_seconds, predict_row, read_row

ROW = next(row for row in read_table("T06_torchtitan_llama3_h100_h200") if row["row_id"] == "T06-01")


def test_a_row_is_read_as_it_stands() -> None:
    plan = read_row(ROW).plans[0]
    assert (plan.dp, plan.zero, plan.micro_batch, plan.recompute) == (8, 3, 2, frozenset({"half"}))
    assert not plan.compiled and plan.fused_attention


def test_renaming_a_rows_model_changes_nothing() -> None:
    assert predict_row({**ROW, "model": "x", "row_id": "y"}).seconds == predict_row(ROW).seconds


def test_what_a_row_measured_is_never_read() -> None:
    blind = dict.fromkeys(
        ("tokens_per_s_gpu", "iter_time_s", "tokens_per_s", "mem_gb", "mfu_pct", "tflops_per_gpu"), ""
    )
    assert predict_row({**ROW, **blind}).seconds == predict_row(ROW).seconds


@pytest.mark.parametrize("column", ["mbs", "recompute", "vp", "zero", "kv_heads", "gbs", "dp", "notes", "precision"])
def test_a_blank_is_unknown_and_still_predicted(column: str) -> None:
    assert predict_row({**ROW, column: ""}).seconds > 0


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({"hw": "H900"}, HardwareError, "accelerator=H900"),
        ({"precision": "fp3"}, HardwareError, "dtype=fp3"),
        ({"hw": "A100", "precision": "fp8"}, HardwareError, "no known peak on A100"),
        ({"tp": "3"}, RowError, "n_gpu=8 is no multiple of tp=3"),
        ({"dp": "5"}, RowError, "dp=5 contradicts"),
        ({"gbs": "4"}, RowError, "gbs=4"),
        ({"n_gpu": ""}, RowError, "n_gpu is blank"),
        ({"layers": ""}, ModelError, "layers is blank"),
        ({"heads": "3"}, ModelError, "heads=3 must divide"),
        ({"tp": "1.5"}, CellError, "tp=1.5 must be a whole number"),
        ({"pp": "4x"}, CellError, "pp=4x must be a whole number"),
        ({"layers": "inf"}, CellError, "layers=inf must be"),
        ({"layers": "1e9"}, ModelError, "layers=1000000000 must be from 1 to 10000"),
        ({"recompute": "everything"}, RowError, "recompute=everything is not known"),
        ({"ep": "8"}, PlanError, "ep=8 needs a model with experts"),
    ],
)
def test_an_impossible_row_says_why(changes: dict[str, str], kind: type[ValueError], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        predict_row({**ROW, **changes})


def test_a_source_older_than_fused_attention_had_none() -> None:
    old = read_table("T01_megatron2021_table1_a100")[0]
    assert not read_row(old).plans[0].fused_attention
    assert read_row({**old, "source_ref": "arXiv:2307.08691"}).plans[0].fused_attention


def test_a_row_of_torus_slices_joins_them_by_the_network() -> None:
    row = next(row for row in read_table("T12_maxtext_tpu_v4_v5e_v5p") if row["row_id"] == "T12-02")
    assert read_row(row).cluster.groups[0].up.domain == 64


def test_measured_time_is_read_from_whatever_a_row_states() -> None:
    assert measured_seconds({"tokens_per_s_gpu": "100", "n_gpu": "8", "seq_len": "10", "gbs": "80"}) == 1.0
    assert measured_seconds({"iter_time_s": "2.5"}) == 2.5
    row = read_table("T01_megatron2021_table1_a100")[0]
    assert measured_seconds({**row, "iter_time_s": ""}) == pytest.approx(float(row["iter_time_s"]), rel=0.02)


@pytest.mark.parametrize("source", ["NVIDIA-NeMo/Megatron-Bridge", "mosaicml/llm-foundry README", "", "anybody"])
def test_whose_row_it_is_decides_no_kernel(source: str) -> None:
    assert read_row({**ROW, "source_ref": source}).plans == read_row(ROW).plans


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("cuDNN", 3),
        ("FlashAttention 2", 2),
        ("Triton FlashAttention", 1),
        ("flash-attention-3", 3),
        ("", 2),
        ("SDPA", 2),
    ],
)
def test_a_column_says_which_kernels_computed_attention(said: str, version: int) -> None:
    assert {plan.attention_version for plan in read_row({**ROW, "attention": said}).plans} == {version}


def test_without_the_column_the_layout_tells_the_kernels() -> None:
    """Fully sharded runs are torch's; a run older than version 2 had the first."""
    cut = {**ROW, "zero": "1", "source_ref": ""}
    assert {plan.attention_version for plan in read_row(cut).plans} == {3}
    assert {plan.attention_version for plan in read_row({**ROW, "source_ref": "arXiv:2301.00001"}).plans} == {1}
