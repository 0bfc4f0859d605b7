from __future__ import annotations

from dataclasses import replace

import pytest

from elasmo.simulate.accelerator import HardwareError
from elasmo.simulate.cluster import parse_cluster
from elasmo.simulate.describe import known_model
from elasmo.simulate.explain import explain, neighbours
from elasmo.simulate.memory import training_memory
from elasmo.simulate.plan import PlanError, refusals
from elasmo.simulate.search import (
    Job,
    Search,
    UnfitError,
    curve_of,
    fixed_fields,
    front_of,
    layouts,
    pareto,
    search,
    searches,
)
from elasmo.simulate.training import fits, simulate_step

MODEL, CLUSTER, JOB = known_model("Llama-3-8B"), parse_cluster("8xH100"), Job(4096, 16)


@pytest.fixture(scope="module")
def sized() -> list[tuple[int, Search | None]]:
    return searches(MODEL, CLUSTER, Job(4096, 16, fixed=(("cp", 1),)), 32)


@pytest.fixture(scope="module")
def found() -> Search:
    return search(MODEL, CLUSTER, JOB)


def test_plans_are_legal_fit_and_are_ranked(found: Search) -> None:
    seconds = [step.seconds for step in found.steps]
    assert seconds == sorted(seconds) and len(seconds) == 5
    for step in found.steps:
        assert refusals(step.plan, MODEL, 8) == []
        assert fits(step.memory, CLUSTER.groups[0].chip)


def test_no_layout_that_fits_is_faster_than_the_best(found: Search) -> None:
    """Against every layout with every choice of recompute."""
    best = found.steps[0].seconds
    chip = CLUSTER.groups[0].chip
    for plan in layouts(MODEL, CLUSTER, JOB):
        for keep in (frozenset(), frozenset({"full"})):
            kept = plan.having(recompute=keep)
            if fits(training_memory(MODEL, kept), chip):
                assert simulate_step(MODEL, kept, CLUSTER).seconds >= best * 0.999


def test_each_goal_ranks_by_its_own() -> None:
    for goal, value in (("energy", "joules_per_token"), ("price", "usd_per_mtoken")):
        found = search(MODEL, CLUSTER, JOB, goal)  # type: ignore[arg-type]
        values = [getattr(step, value) for step in found.steps]
        assert values == sorted(values)


def test_what_is_fixed_stays() -> None:
    found = search(MODEL, CLUSTER, Job(4096, 16, fixed=fixed_fields(["tp=4", "pp=2"])))
    assert {(step.plan.tp, step.plan.pp) for step in found.steps} == {(4, 2)}


def test_an_illegal_layout_is_refused_with_the_nearest_legal_one() -> None:
    with pytest.raises(PlanError, match=r"tp=3 must divide heads=32; .*nearest legal layout is .*tp="):
        search(MODEL, CLUSTER, Job(4096, 16, fixed=(("tp", 3),)))


@pytest.mark.parametrize("text", ["tp", "tp=x", "heads=3", "=4"])
def test_a_fixed_field_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="such as tp=8"):
        fixed_fields([text])


def test_a_model_that_does_not_fit_says_by_how_much_and_where_it_would() -> None:
    with pytest.raises(UnfitError, match=r"needs [\d.]+ GiB a rank, [\d.]+ GiB more .* would fit on \d+xA100"):
        search(known_model("Llama-3-70B"), parse_cluster("8xA100"), JOB)


def test_an_unknown_peak_is_refused_before_anything_is_planned() -> None:
    with pytest.raises(HardwareError, match="dtype=fp8"):
        search(MODEL, parse_cluster("8xA100"), Job(4096, 16, "fp8"))


def test_energy_needs_a_known_power() -> None:
    with pytest.raises(PlanError, match="goal=energy needs the power"):
        search(MODEL, parse_cluster("8xTPU v5p"), JOB, "energy")


def test_an_explanation_names_what_binds_and_changes_that_can_be(found: Search) -> None:
    step = found.steps[0]
    made = explain(MODEL, step, CLUSTER)
    assert sum(made.binds.values()) == pytest.approx(1, abs=0.02)
    assert next(iter(made.binds)) == "compute"
    assert max(change.saves for change in made.plan_changes) < 0.02  # the best plan has no better neighbour
    doubled = {change.what: change.saves for change in made.hardware_changes}
    assert doubled["twice the peak"] > 0.3 > doubled["twice the network"] >= 0


def test_a_scaling_curve_doubles_the_accelerators_and_keeps_the_batch(sized: list[tuple[int, Search | None]]) -> None:
    curve = curve_of(sized)
    assert [count for count, _ in curve] == [8, 16, 32]
    assert all(step is not None and step.plan.global_batch == 32 for _, step in curve)
    speeds = [step.tokens_per_s for _, step in curve if step is not None]
    assert speeds == sorted(speeds) and speeds[2] < 4 * speeds[0]


def test_neighbours_keep_the_number_of_accelerators(found: Search) -> None:
    plan = found.steps[0].plan
    assert {made.world for _, made in neighbours(plan)} == {8}


def test_a_mixed_fleet_is_planned_by_its_smallest_memory() -> None:
    cluster = parse_cluster("4xH100+4xa100_40gb")
    step = search(MODEL, cluster, JOB, top=1).steps[0]
    assert step.memory.total <= 40 * (1 << 30)


@pytest.mark.full
def test_2048_accelerators_are_searched_within_a_minute() -> None:
    found = search(known_model("DeepSeek-V3-671B"), parse_cluster("2048xH100"), Job(4096, 15_360, "fp8"))
    assert found.tried > 500 and replace(found.steps[0].plan).world == 2048


def test_a_front_is_what_no_plan_beats(found: Search) -> None:
    """Against every pair of plans, one by one."""
    own = lambda step: (step.seconds, step.usd_per_mtoken, step.joules_per_token)  # noqa: E731
    beaten = {
        own(a)
        for a in found.fitting
        if any(all(x <= y for x, y in zip(own(b), own(a), strict=True)) and own(b) != own(a) for b in found.fitting)
    }
    assert {own(step) for step in found.front} == {own(step) for step in found.fitting} - beaten
    assert found.front[0] == found.steps[0]


def test_a_front_over_sizes_trades_time_for_price(sized: list[tuple[int, Search | None]]) -> None:
    front = front_of(sized)
    assert {step.plan.world for step in front} >= {8, 32}
    seconds, dollars = [s.seconds for s in front], [s.usd_per_mtoken or 0.0 for s in front]
    assert seconds == sorted(seconds) and dollars[0] > dollars[-1]
    steps = [step for _, each in sized if each is not None for step in each.fitting]
    assert pareto(steps) == front
