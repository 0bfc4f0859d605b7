"""Every layout of up to four ranks trains as one dense process does, or is refused with a reason.

Loss, gradient norm, every gradient (as first moments, after clipping) and every weight are compared over three steps.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

from elasmo.parallel.layout import Layout
from elasmo.parallel.planner import Job, layouts
from tests.gloo import run_ranks
from tests.parallel import layout_run, oracle

TOLERANCE = 1e-5
JOB = Job(oracle.SLOTS, oracle.VOCAB)


def enumerated() -> tuple[list[tuple[str, Layout]], list[tuple[str, Layout, list[str]]]]:
    legal, illegal = [], []
    for kind, model in oracle.MODELS.items():
        for ranks in (1, 2, 3, 4):
            for layout, reasons in layouts(ranks, model, JOB):
                if reasons:
                    illegal.append((kind, layout, reasons))
                else:
                    legal.append((kind, layout))
    return legal, illegal


LEGAL, ILLEGAL = enumerated()
COVERING = [
    ("dense", Layout(dp=2, tp=2, zero_stage=1)),
    ("moe", Layout(dp=2, sp=2, ep=2, zero_stage=2)),
    ("multimodal", Layout(tp=2, sp=2, zero_stage=3)),
    ("multimodal", Layout(dp=3, zero_stage=2)),
    ("switch", Layout(sp=2, ep=2, zero_stage=0)),
    ("multimodal", Layout(pp=2, dp=2, zero_stage=1)),
    ("attending", Layout(tp=2, sp=2, zero_stage=1)),
]
"""Every kind of cut, model and ZeRO stage at least once."""
VARIANTS = [
    ("dense", Layout(tp=2, dp=2, tp_sequence=True)),
    ("moe", Layout(tp=2, sp=2, ep=2, tp_sequence=True)),
    ("switch", Layout(tp=2, tp_sequence=True, zero_stage=2)),
    ("multimodal", Layout(tp=3, tp_sequence=True)),
    ("multimodal", Layout(tp=4, tp_sequence=True, zero_stage=3)),
    ("dense", Layout(sp=2, recompute="selective")),
    ("moe", Layout(dp=2, ep=2, recompute="full", zero_stage=2)),
    ("multimodal", Layout(tp=2, dp=2, recompute="selective", tp_sequence=True)),
    ("multimodal", Layout(sp=2, dp=2, recompute="full", zero_stage=3)),
    ("multimodal", Layout(dp=2, pp=2, schedule="gpipe", zero_stage=0)),
    ("multimodal", Layout(pp=2, tp=2, schedule="interleaved", chunks=2)),
    ("multimodal", Layout(pp=2, sp=2, schedule="zero-bubble", chunks=2)),
    ("moe", Layout(pp=2, dp=2, ep=2, schedule="zero-bubble", chunks=2, recompute="full")),
    ("moe", Layout(pp=2, tp=2, schedule="interleaved", chunks=2, tp_sequence=True, recompute="selective")),
    ("dense", Layout(pp=2, schedule="zero-bubble", chunks=2, tp=2, tp_sequence=True)),
    ("switch", Layout(pp=4, schedule="gpipe", zero_stage=0)),
    ("attending", Layout(dp=2, tp=2, zero_stage=3)),
    ("attending", Layout(tp=4, tp_sequence=True, zero_stage=2)),
    ("attending", Layout(sp=4, recompute="selective")),
    ("attending", Layout(dp=3, zero_stage=0, recompute="full")),
    ("attending", Layout(pp=4, schedule="gpipe")),
    ("attending", Layout(pp=2, tp=2, tp_sequence=True)),
    ("attending", Layout(pp=2, sp=2, schedule="interleaved", chunks=2)),
    ("attending", Layout(pp=2, dp=2, schedule="zero-bubble", chunks=2)),
]
"""Cuts and savings beside the enumerated dimensions."""


@lru_cache
def run_batch(kind: str, chosen: tuple[Layout, ...]) -> dict[Layout, dict[str, float]]:
    """Runs layouts of one number of ranks in the same processes; the worst of all ranks for each."""
    ranks = run_ranks(chosen[0].world, layout_run.distances, kind, list(chosen), deadline_s=60 + 20 * len(chosen))
    return {
        layout: {name: max(r[i].get(name, 0.0) for r in ranks) for name in set().union(*(r[i] for r in ranks))}
        for i, layout in enumerate(chosen)
    }


def check(cases: list[tuple[str, Layout]], kind: str, layout: Layout) -> None:
    """Asserts that a layout equals the dense run; those of the same size, kind and ZeRO family run together."""
    batch = tuple(
        other
        for of, other in cases
        if of == kind and other.world == layout.world and (other.zero_stage == 3) == (layout.zero_stage == 3)
    )
    worst = run_batch(kind, batch)[layout]
    assert worst["loss"] > 0 or worst["norm"] > 0 or layout.world == 1  # something was compared
    wrong = {name: value for name, value in worst.items() if not value <= TOLERANCE}
    assert not wrong, f"{kind} {layout}: {wrong}"


def name(value: object) -> str:
    return str(value).replace(" ", ",") if isinstance(value, str | Layout) else ""


@pytest.mark.parametrize("kind", [*oracle.MODELS, "attending"])
def test_every_tensor_of_the_dense_run_has_a_gradient_worth_comparing(kind: str) -> None:
    for moments in oracle.dense_run(kind).moments:
        assert not [tensor for tensor, moment in moments.items() if not moment.norm() > 1e-6]


@pytest.mark.parametrize(("kind", "layout"), COVERING, ids=name)
def test_a_covering_set_of_layouts_equals_the_dense_run(kind: str, layout: Layout) -> None:
    check(COVERING, kind, layout)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "layout"), LEGAL, ids=name)
def test_every_legal_layout_equals_the_dense_run(kind: str, layout: Layout) -> None:
    check(LEGAL, kind, layout)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "layout"), VARIANTS, ids=name)
def test_schedules_sequence_parallel_norms_and_recomputation_equal_the_dense_run(kind: str, layout: Layout) -> None:
    check(VARIANTS, kind, layout)


@pytest.mark.parametrize(("kind", "layout", "reasons"), ILLEGAL, ids=name)
def test_every_illegal_layout_is_refused_with_its_reason(kind: str, layout: Layout, reasons: list[str]) -> None:
    cuts = {"dp", "tp", "pp", "sp", "ep", "zero_stage"}
    for reason in reasons:
        assert "\n" not in reason and any(f"{cut}=" in reason for cut in cuts)
