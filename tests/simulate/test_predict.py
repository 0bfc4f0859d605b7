from __future__ import annotations

from pathlib import Path

import pytest

from elasmo.simulate.predict import COLUMNS, TableError, predict_table, write_table


def test_a_table_is_filled_beside_its_own_columns(tmp_path: Path) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text(
        "row_id,hw,n_gpu,precision,layers,hidden,heads,kv_heads,ffn,vocab,seq_len,tp,mbs,gbs\n"
        "a,H100,8,bf16,32,4096,32,8,14336,128256,8192,,1,8\n"
        "b,H900,8,bf16,32,4096,32,8,14336,128256,8192,,1,8\n"
    )
    rows = predict_table(source)
    write_table(rows, out)
    good, bad = rows
    assert set(COLUMNS) < set(good) and good["row_id"] == "a"
    assert float(good["predicted_tokens_per_s"]) == pytest.approx(
        8 * float(good["predicted_tokens_per_s_gpu"]), rel=1e-4
    )
    assert good["reason"] == "" and bad["predicted_iter_time_s"] == "" and "H900 is not known" in bad["reason"]
    assert out.read_text().count("\n") == 3


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    for path in (empty, tmp_path / "none.csv"):
        with pytest.raises(TableError, match=path.name):
            predict_table(path)
