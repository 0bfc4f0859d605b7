"""What is suggested, and what it rests on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from elasmo.stages.forecast import Limits, forecast
from elasmo.stages.stage_run import PartRun, StageRun
from elasmo.stages.suggestion import Suggestion, suggest
from tests.stages.histories import history

GIB = 2**30


def runs(count: int = 10, **changes: object) -> list[StageRun]:
    made = history(np.random.default_rng(0), count)
    fixed = {"bytes_in": 10**9, "seconds": 60.0, "cpu_s": 57.0, "memory_bytes": 4 * GIB, "synthetic": False, **changes}
    return [replace(run, **fixed) for run in made]  # type: ignore[arg-type]


def suggested(past: list[StageRun], limits: Limits) -> list[Suggestion]:
    (made,) = forecast(past, limits, synthetic=True)
    return suggest(past, made, limits)


def failing_in(run: StageRun, part: str, outcome: str = "failed") -> StageRun:
    parts = (PartRun("pets-0", "done"), PartRun(part, outcome))  # type: ignore[arg-type]
    return replace(run, outcome=outcome, error=f"{part} is cut", parts=parts)  # type: ignore[arg-type]


def test_nothing_is_suggested_where_nothing_is_likely() -> None:
    assert suggested(runs(), Limits(600, 16 * GIB)) == []


def test_a_part_in_which_runs_broke_twice_is_named_until_one_has_passed_it() -> None:
    calm, limits = runs(), Limits()
    bad = [failing_in(calm[0], "pets-1"), failing_in(calm[0], "pets-1", "killed")]
    (found,) = suggested([*calm, *bad], limits)
    assert (found.action, found.sentence) == ("repair or leave out", "repair pets-1, or leave it out")
    assert found.evidence == "2 of 2 bad runs broke in it, the last with: pets-1 is cut"
    assert suggested([*calm, bad[0]], limits) == []
    mended = replace(calm[0], parts=(PartRun("pets-0", "done"), PartRun("pets-1", "done")))
    assert suggested([*calm, *bad, mended], limits) == []


def test_more_memory_is_as_much_as_95_of_100_runs_need() -> None:
    limits = Limits(memory_bytes=4 * GIB)
    (found,) = suggested(runs(), limits)
    (made,) = forecast(runs(), limits)
    assert made.memory_bytes is not None and found.action == "more memory"
    assert found.sentence == f"give it {made.memory_bytes.high / GIB:.1f} GiB"
    assert "the limit is 4.0 GiB" in found.evidence


def test_smaller_blocks_where_a_part_is_much_of_the_peak() -> None:
    limits = Limits(memory_bytes=4 * GIB)
    actions = [found.action for found in suggested(runs(largest_part_bytes=GIB), limits)]
    assert actions == ["more memory", "smaller blocks"]
    assert [found.action for found in suggested(runs(largest_part_bytes=GIB // 100), limits)] == ["more memory"]
    copied = suggested(runs(stage="copy"), limits)
    assert copied[1].sentence == "halve `chunk_rows` of the SQL table"


def test_more_workers_only_where_the_cpu_is_the_bottleneck() -> None:
    limits = Limits(seconds=31.0)
    (busy,) = suggested(runs(), limits)
    assert (busy.action, busy.sentence) == ("more workers", "cut the dataset into 3 that are ingested at once")
    assert busy.evidence == "a CPU was busy 95.0 % of the time, in the median of 10 runs"
    (idle,) = suggested(runs(cpu_s=6.0), limits)
    assert idle.action == "faster source"


def test_evidence_of_injected_faults_is_labelled() -> None:
    limits = Limits(memory_bytes=4 * GIB)
    assert [found.synthetic for found in suggested(runs(synthetic=True), limits)] == [True]
    assert [found.synthetic for found in suggested(runs(), limits)] == [False]
