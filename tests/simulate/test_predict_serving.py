"""Rows of the serving tables are filled, blanks are unknown, and what cannot be gets a reason and no number."""

from __future__ import annotations

import pytest

from elasmo.simulate.predict import predict_table, write_table
from elasmo.simulate.predict_serving import COLUMNS, predict_serving
from elasmo.simulate.published import read_table

ROW = {
    "task": "lm-arena-chat", "hw": "H100", "n_gpu": "1", "tp": "1", "model": "meta-llama/Llama-3.1-8B-Instruct",
    "weight_precision": "bfloat16", "max_num_seqs": "64", "avg_output_len": "395.5",
}  # fmt: skip


@pytest.mark.parametrize("table", ["S05_tensorrt_llm_throughput_ttft", "S07_mlenergy_llm_mllm_h100_b200"])
def test_every_published_row_is_filled(table: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    write_table(read_table(table), tmp_path / "rows.csv")
    rows = predict_table(tmp_path / "rows.csv")
    assert len(rows) == len(read_table(table)) and not any(row["reason"] for row in rows)
    assert all(float(row["predicted_ttft_ms"]) > 0 and float(row["predicted_mem_gb"]) > 1 for row in rows)


def test_what_is_blank_is_assumed_and_said() -> None:
    blank = predict_serving({**ROW, "avg_output_len": "", "tp": ""})
    stated = predict_serving(ROW)
    assert blank["reason"] == stated["reason"] == ""
    assert "assumed lengths: prompt, output" in blank["predicted_from"]
    assert float(blank["predicted_median_itl_ms"]) == pytest.approx(float(stated["predicted_median_itl_ms"]), rel=0.2)
    assert float(stated["predicted_median_itl_ms"]) == pytest.approx(11.5, rel=0.15), "as published"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "nobody/knows"}, "not among the published shapes"),
        ({"hw": "Z9"}, "accelerator=Z9 is not known"),
        ({"weight_precision": "fp3"}, "dtype=fp3 is not known"),
        ({"hw": "A100", "weight_precision": "fp8"}, "fp8 has no known peak"),
        ({"model": "meta-llama/Llama-3.1-405B-Instruct"}, "it lacks"),
        ({"n_gpu": "4", "tp": "2"}, "contradicts"),
        ({"max_num_seqs": ""}, "one of them is needed"),
    ],
)
def test_an_impossible_row_gets_a_reason_and_no_number(change: dict[str, str], reason: str) -> None:
    filled = predict_serving({**ROW, **change})
    assert reason in filled["reason"] and not any(filled[name] for name in COLUMNS if name != "reason")


def test_a_name_that_is_not_known_counts_by_its_parameters_and_says_so() -> None:
    other = predict_serving({**ROW, "model": "nobody/knows", "total_params_b": "8.0", "active_params_b": "8.0"})
    assert "estimated" in other["predicted_from"]
    known = float(predict_serving(ROW)["predicted_median_itl_ms"])
    assert float(other["predicted_median_itl_ms"]) == pytest.approx(known, rel=0.2)


def test_more_requests_than_fit_do_not_run_at_once() -> None:
    many = predict_serving({**ROW, "max_num_seqs": "100000"})
    assert float(many["predicted_batch"]) < 5000
    assert float(many["predicted_mem_gb"]) < 80
