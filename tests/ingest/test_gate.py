"""The gate: each check on profiles made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from elasmo.ingest.gate import judge
from elasmo.ingest.gate_report import Check, GateReport
from elasmo.ingest.near_rows import NearFound
from elasmo.ingest.profile import Profile
from elasmo.ingest.profiling import profile_table
from elasmo.ingest.repeat import Repeats
from elasmo.sources.contract import Contract, ContractError, Gates, load_contract
from tests.pets import CONTRACT, png, write_dataset

TABLES = {
    "scans": {
        "columns": {
            "key": {"type": "string"},
            "digit": {"type": "integer", "min": 0, "max": 9},
            "ink": {"type": "number", "nullable": True},
            "coat": {"type": "category", "categories": ["black", "white"], "nullable": True},
        }
    }
}
NONE = Repeats({}, {}, 0, ())


def contract(**gates: Any) -> Contract:
    tree = {**CONTRACT, "name": "pets", "source": "recipe", "tables": TABLES, "gates": gates, "record": {}}
    return Contract.model_validate(tree)


def columns(count: int = 400, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    coat = [["black", "white"][code] for code in random.integers(0, 2, count)]
    keys = [f"k{number}" for number in range(count)]
    return {"key": keys, "digit": random.integers(0, 10, count), "ink": random.normal(size=count), "coat": coat}


def profile(content: dict[str, Any], name: str = "new") -> Profile:
    return Profile("pets", "silver", name, {"scans": profile_table(pa.table(content))})


def judged(after: dict[str, Any], before: dict[str, Any] | None = None, **gates: Any) -> GateReport:
    ours = contract(**gates)
    earlier = None if before is None else profile(before, "old")
    return judge(profile(after), earlier, ours, ours.tables, NONE, 400, 0)


def only(report: GateReport, name: str, subject: str) -> Check:
    (check,) = [check for check in report.checks if (check.name, check.subject) == (name, subject)]
    return check


def test_the_same_data_and_another_sample_of_it_pass() -> None:
    assert judged(columns(), columns()).verdict == "pass"
    assert {judged(columns(seed=seed), columns()).verdict for seed in range(1, 21)} == {"pass"}


@pytest.mark.parametrize("count", [400, 5000])
def test_a_few_rows_more_pass(count: int) -> None:
    after = {
        name: [*old, *new] for (name, old), new in zip(columns(count).items(), columns(20, 5).values(), strict=True)
    }
    assert judged(after, columns(count)).verdict == "pass"


def test_a_first_snapshot_is_held_against_the_contract_alone() -> None:
    report = judged(columns())
    assert report.predecessor is None and report.verdict == "pass"
    assert {check.name for check in report.checks} == {"contract", "leakage", "refused"}


@pytest.mark.parametrize(
    ("column", "values", "sentence"),
    [
        ("digit", [None] * 4 + [1] * 396, "scans.digit breaks the contract: 4 nulls in a column that takes none."),
        ("digit", [-3] + [12] * 399, "minimum -3 below 0; maximum 12 above 9"),
        ("coat", ["pink"] * 400, "value 'pink', which is none of its categories"),
    ],
)
def test_what_breaks_the_contract_blocks(column: str, values: list[Any], sentence: str) -> None:
    report = judged({**columns(), column: values})
    assert report.verdict == "block" and sentence in report.sentences("block")[0]


def test_a_record_that_may_be_null_breaks_no_contract_by_its_fields() -> None:
    column = {"type": "record", "nullable": True}
    tables = {"notes": {"columns": {"key": {"type": "string"}, "record": column}}}
    ours = Contract.model_validate({**CONTRACT, "name": "pets", "source": "recipe", "tables": tables})
    rows = pa.table({"key": ["a", "b"], "record": [None, {"age": 3, "coat": None}]})
    made = Profile("pets", "silver", "s", {"notes": profile_table(rows)})
    assert judge(made, None, ours, ours.tables, NONE, 2, 0).verdict == "pass"
    column["nullable"] = False
    strict = Contract.model_validate({**CONTRACT, "name": "pets", "source": "recipe", "tables": tables})
    assert judge(made, None, strict, strict.tables, NONE, 2, 0).sentences("block") == [
        "notes.record.age breaks the contract: 1 nulls in a column that takes none."
    ]


def test_columns_removed_and_retyped_block_and_added_ones_warn() -> None:
    before = {**columns(), "extra": [1] * 400}
    after = {**columns(), "ink": ["dark"] * 400, "other": [1] * 400}
    report = judged(after, before)
    found = {check.subject: (check.verdict, check.sentence) for check in report.checks if check.name == "schema"}
    assert found == {
        "scans.extra": ("block", "scans.extra is gone."),
        "scans.other": ("warn", "scans.other was added."),
        "scans.ink": ("block", "scans.ink was double and is string."),
    }
    assert judged(after, before, columns="warn").verdict == "warn"


def test_nulls_that_grew_block_with_both_shares() -> None:
    ink = columns()["ink"].tolist()
    report = judged({**columns(), "ink": [None] * 120 + ink[120:]}, columns())
    check = only(report, "nulls", "scans.ink")
    assert check.verdict == "block" and check.numbers == {"share": 0.3}
    assert check.thresholds == {"share.warn": 0.02, "share.block": 0.2}
    assert check.sentence.startswith("scans.ink had 0.0 % nulls and has 30.0 % (warns above 0.02, blocks above 0.2)")


def test_numbers_that_moved_block_by_psi_ks_and_range() -> None:
    report = judged({**columns(), "ink": columns(seed=1)["ink"] + 3}, columns())
    drift, beyond = only(report, "drift", "scans.ink"), only(report, "range", "scans.ink")
    assert drift.verdict == beyond.verdict == "block"
    assert drift.numbers["ks"] == pytest.approx(0.866, abs=0.04)  # 2 Phi(3 / 2) - 1
    assert drift.numbers["p"] < 1e-30 and drift.numbers["psi"] > 2


def test_labels_that_shifted_block_by_chi_squared_with_the_largest_change() -> None:
    report = judged({**columns(), "digit": [7] * 200 + columns()["digit"].tolist()[200:]}, columns())
    drift = only(report, "drift", "scans.digit")
    assert drift.verdict == "block" and drift.numbers["chi2"] > 0.25
    assert "'7' was" in drift.sentence and drift.thresholds["psi.block"] == 0.25


def test_addresses_that_appear_in_a_text_and_media_of_another_format_are_drifts() -> None:
    before = {**columns(), "note": [f"note {n}" for n in range(400)], "png": [png(n) for n in range(400)]}
    notes = [f"note {n}" if n % 4 else f"a{n}@example.org" for n in range(400)]
    report = judged({**before, "note": notes, "png": [png(n)[:4] if n % 2 else png(n) for n in range(400)]}, before)
    assert "'email' was 0.0 % and is 25.0 %" in only(report, "drift", "scans.note (email)").sentence
    assert only(report, "drift", "scans.png (format)").verdict == "block"
    assert "'PNG' was 100 % and is 50.0 %" in only(report, "drift", "scans.png (format)").sentence


def test_a_category_that_became_free_text_warns() -> None:
    before = {**columns(), "kind": ["cat", "dog"] * 200}
    report = judged({**before, "kind": [f"c{n:02}" for n in range(400)]}, before)
    assert only(report, "mix", "scans.kind").sentence.startswith("scans.kind had 2 distinct values and has about 4")


def test_what_chance_explains_passes_and_a_small_table_only_warns() -> None:
    """Half against all of twelve rows is a PSI of several, and no evidence; of 40 it is evidence, and few."""
    assert judged({**columns(12), "digit": [7] * 6 + [1] * 6}, columns(12)).verdict != "block"
    small = judged({**columns(40), "digit": [7] * 40}, columns(40))
    assert only(small, "drift", "scans.digit").verdict == "warn"
    assert judged({**columns(40), "digit": [7] * 40}, columns(40), min_rows=10).verdict == "block"


def test_few_values_in_a_large_table_only_warn() -> None:
    rare = [float(number) if number < 30 else None for number in range(400)]
    moved = [None if value is None else value + 100 for value in rare]
    report = judged({**columns(), "ink": moved}, {**columns(), "ink": rare})
    assert only(report, "range", "scans.ink").verdict == only(report, "drift", "scans.ink").verdict == "warn"


def test_a_column_to_ignore_that_is_none_is_told() -> None:
    assert judged(columns(), columns(), ignore=["scans.inc"]).sentences("warn") == [
        "gates.ignore names scans.inc, which is no column."
    ]


def test_rows_and_tables_that_are_gone() -> None:
    check = only(judged(columns(150), columns(400)), "rows", "scans")
    assert check.verdict == "block" and check.numbers["share"] == 0.625
    ours, old = contract(), profile(columns(), "old")
    empty = judge(replace(old, tables={}), old, ours, {}, NONE, 1, 0)
    assert empty.sentences("block") == ["table scans is gone."]


def test_refused_duplicate_and_leaking_values_are_held_against_their_thresholds() -> None:
    repeats = Repeats({"scans.png": (400, 300)}, {"scans": (9, ("cat",))}, 100, (("a/1", "b/2"),) * 20)
    report = judge(profile(columns()), None, contract(), {}, repeats, 1000, 600)
    assert report.sentences("block") == [
        "300 of 400 values of scans.png (75.0 %) equal an earlier one (warns above 0.05, blocks above 0.5).",
        "1 of 9 concepts of scans are in both splits, the first 'cat'.",
        "20 of 100 media (20.0 %) are in both splits, the first a/1 and b/2 (warns above 0, blocks above 0.1).",
        "600 of 1000 landed rows (60.0 %) are in quarantine (warns above 0.05, blocks above 0.5).",
    ]


def test_ignored_columns_may_drift_and_a_null_threshold_is_off() -> None:
    moved = {**columns(), "ink": columns()["ink"] + 3}
    assert judged(moved, columns(), ignore=["scans.ink"]).verdict == "pass"
    off = {"warn": None, "block": None}
    assert judged(moved, columns(), psi=off, ks=off, outside=off).verdict == "pass"


def test_a_report_survives_json() -> None:
    report = replace(judged({**columns(), "digit": [7] * 400}, columns()), accepted="today by me")
    assert GateReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert report.verdict == "block" and report.opens


def test_a_threshold_in_the_contract_keeps_the_other_default() -> None:
    gates = Gates.model_validate({"psi": {"block": 0.6}, "min_rows": 9})
    assert (gates.psi.warn, gates.psi.block, gates.ks.block, gates.min_rows) == (0.1, 0.6, 0.25, 9)


@pytest.mark.parametrize(
    ("gates", "sentence"),
    [
        ({"pso": {}}, "unknown key 'gates.pso'; did you mean 'psi'?"),
        ({"psi": {"blok": 1}}, "unknown key 'gates.psi.blok'; did you mean 'block'?"),
        ({"psi": {"warn": 0.5}}, "gates.psi: warn=0.5 is above block=0.25."),
    ],
)
def test_a_mistake_in_gates_is_one_sentence(tmp_path: Path, gates: dict[str, Any], sentence: str) -> None:
    write_dataset(tmp_path / "pets", [], {}, {"gates": gates})
    with pytest.raises(ContractError) as raised:
        load_contract(tmp_path / "pets")
    assert str(raised.value).endswith(sentence)


def test_near_duplicates_warn_and_a_tenth_of_the_held_out_ones_across_the_split_blocks() -> None:
    leaks = (("photos/a/image", "photos/b/image", 2.0),)
    few = {"image": NearFound(1000, 300, 4, 200, 1, leaks), "text": NearFound(90, 0, 0, 90, 0)}
    made = profile(columns())
    report = judge(made, None, contract(), contract().tables, NONE, 400, 0, few)
    assert only(report, "near duplicates", "image").verdict == only(report, "near leakage", "image").verdict == "warn"
    assert only(report, "near leakage", "text").verdict == "pass"
    assert only(report, "near leakage", "image").sentence == (
        "1 of 200 held-out images (0.5 %) are near a training one, the first photos/b/image and photos/a/image "
        "(distance 2) (warns above 0, blocks above 0.1)."
    )
    assert "4 rows were left out for it" in only(report, "near duplicates", "image").sentence
    many = {"image": NearFound(1000, 30, 0, 200, 21, leaks)}
    assert judge(made, None, contract(), contract().tables, NONE, 400, 0, many).verdict == "block"
    off = contract(near_leakage={"warn": None, "block": None})
    assert judge(made, None, off, off.tables, NONE, 400, 0, many).verdict == "pass"


def test_marks_of_near_rows_do_not_drift() -> None:
    before = {**columns(), "coat_near_distance": np.zeros(400), "ink_before": np.zeros(400)}
    after = {**columns(seed=1), "coat_near_distance": np.full(400, 4.0), "ink_before": np.full(400, 4.0)}
    subjects = {check.subject for check in judged(after, before).checks if check.verdict == "block"}
    assert subjects == {"scans.ink_before"}
