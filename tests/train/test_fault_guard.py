"""Ranks of real layouts decide alike about a step, remember it over a resume, and name a corrupted replica."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from elasmo.config import FaultsConfig
from elasmo.parallel.layout import Layout
from elasmo.train import deepspeed_adapter
from elasmo.train.fault_guard import FaultGuard, RolledBack
from elasmo.train.loss import NumericalError
from tests.gloo import run_ranks
from tests.parallel import oracle
from tests.parallel.layout_run import start
from tests.train.test_step_gate import equal, state_of

LAYOUTS = [
    Layout(dp=4, zero_stage=1),
    Layout(dp=2, tp=2, zero_stage=2),
    Layout(dp=2, pp=2, zero_stage=1),
    Layout(dp=2, sp=2, zero_stage=0),
]
BAD_STEP = 2


class Run:
    """A guarded engine of a layout, and what its ranks said."""

    def __init__(self, layout: Layout, faults: FaultsConfig, meta: Mapping[str, Any] | None = None) -> None:
        deepspeed_adapter.init_distributed(60)
        self.engine = start("multimodal", layout)
        self.reports: list[Mapping[str, Any]] = []
        self.guard = FaultGuard(self.engine, faults, self.gather, self.reports.append)
        self.guard.start(0, meta or {}, {})

    def gather(self, value: Any) -> list[Any]:
        out = [None] * dist.get_world_size()
        dist.all_gather_object(out, value)
        return out

    def step(self, step: int, poison: Sequence[int] = (), value: float = math.nan) -> None:
        """Step `step` of the log; ranks of `poison` see another loss in their first slot than they computed."""
        engine, slots = self.engine, oracle.slots("multimodal", (step - 1) % 3)
        place, dp = engine.mesh.place, engine.layout.dp
        mine = slots[place.dp :: dp]
        feed = [mine[micro] if micro < len(mine) else None for micro in range(engine.micro_steps(oracle.SLOTS))]

        def check(micro: int, losses: Tensor) -> None:
            if dist.get_rank() in poison and micro == 0:
                losses.data.fill_(value)
            slot = place.dp + micro * dp
            self.guard.check(losses, slot, [100 * step + 10 * slot, 100 * step + 10 * slot + 1])

        target_tokens = oracle.targets(slots)
        self.guard.begin(step, target_tokens)
        for _ in engine.step(feed, target_tokens, check):
            pass


def skipping(rank: int, world: int, layouts: list[Layout], poisoned: int) -> list[dict[str, Any]]:
    found = []
    for layout in layouts:
        faults = FaultsConfig(on_non_finite="skip")
        run = Run(layout, faults)
        run.step(1)
        assert run.guard.skipped is None
        before = state_of(run.engine.deepspeed)
        run.step(BAD_STEP, [poisoned])
        unchanged, record = equal(before, state_of(run.engine.deepspeed)), run.guard.skipped
        meta = run.guard.meta(2)
        run.step(3)
        after = state_of(run.engine.deepspeed)
        run.engine.deepspeed.destroy()
        # The same steps again by ranks that know of it, and see nothing wrong this time.
        again = Run(layout, FaultsConfig(), {"optimizer_step": 0, "faults": {"skipped": meta["faults"]["skipped"]}})
        for step in (1, 2, 3):
            again.step(step)
            if step == BAD_STEP:
                known = again.guard.skipped
        found.append(
            {
                "unchanged": unchanged,
                "record": record,
                "meta": meta,
                "known": known,
                "same": equal(after, state_of(again.engine.deepspeed)),
                "optimizer_steps": again.guard.optimizer_steps,
            }
        )
        again.engine.deepspeed.destroy()
    return found


def check_skipping(layouts: list[Layout], found: list[dict[str, Any]], slots: list[int]) -> None:
    for layout, own, slot in zip(layouts, found, slots, strict=True):
        assert own["unchanged"] and own["same"], layout
        bad = {"slot": slot, "rows": [200 + 10 * slot, 201 + 10 * slot]}
        assert own["record"]["slots"] == [bad] and not own["record"]["known"]
        assert own["known"]["known"] and own["known"]["reason"] == own["record"]["reason"]
        assert own["meta"]["optimizer_step"] == 1 and own["optimizer_steps"] == 2
        assert own["meta"]["faults"]["skipped"] == {2: own["record"]["reason"]}


@pytest.mark.full
def test_ranks_that_share_a_slot_skip_together_and_the_last_stage_of_a_pipeline_speaks_for_the_first() -> None:
    for found in run_ranks(4, skipping, [LAYOUTS[1], LAYOUTS[3]], 2):
        check_skipping([LAYOUTS[1], LAYOUTS[3]], found, [1, 1])
    for found in run_ranks(4, skipping, [LAYOUTS[2]], 3):
        check_skipping([LAYOUTS[2]], found, [1])


def spiking(rank: int, world: int) -> list[Any]:
    faults = FaultsConfig(spike_z=20.0, on_spike="rollback", window=8, max_skips=1)
    run = Run(LAYOUTS[0], faults)
    for step in range(1, 10):
        run.step(step)
    window = run.guard.meta(9)["faults"]["losses"]
    before = state_of(run.engine.deepspeed)
    said = []
    for step in (10, 11):
        try:
            run.step(step, [1], 1e4)
        except (RolledBack, NumericalError) as error:
            said.append(f"{type(error).__name__}: {error}")
        run.guard.start(9, {}, {10: "the first"})
    unchanged = equal(before, state_of(run.engine.deepspeed))
    run.engine.deepspeed.destroy()
    return [window, unchanged, said, [dict(report) for report in run.reports]]


def stopped(how: str) -> str:
    run = Run(LAYOUTS[0], FaultsConfig())
    if how == "norm":
        trained = next(p for p in run.engine.deepspeed.module.parameters() if p.requires_grad)
        trained.register_hook(lambda gradient: gradient * math.nan)
    try:
        run.step(1, [0, 1, 2, 3] if how == "loss" else [])  # on all, or the others would wait for its gradient
    except NumericalError as error:
        return str(error)
    finally:
        run.engine.deepspeed.destroy()
    return ""


def corrupted(layout: Layout, bad: int, action: str) -> tuple[str, list[Any], bool]:
    run = Run(layout, FaultsConfig(checksum_every=2, on_corruption=action))
    for step in (1, 2, 3):
        run.step(step)
    if dist.get_rank() == bad:
        victim = dict(run.engine.deepspeed.module.named_parameters())["trained.decoder.norm.weight"]
        victim.data.view(torch.int32)[3] ^= 1  # the last bit of a mantissa
    before, said, unchanged = state_of(run.engine.deepspeed), "", False
    try:
        run.step(4)
    except (RolledBack, NumericalError) as error:
        said, unchanged = f"{type(error).__name__}: {error}", equal(before, state_of(run.engine.deepspeed))
    run.engine.deepspeed.destroy()
    return said, [dict(report) for report in run.reports], unchanged


def all_of_four(rank: int, world: int) -> dict[str, Any]:
    """Everything that four data-parallel ranks are asked in the fast tier, in one pool of processes."""
    return {
        "skipping": skipping(rank, world, LAYOUTS[:1], 2),
        "spiking": spiking(rank, world),
        "norm": stopped("norm"),
        "loss": stopped("loss"),
        "stop": corrupted(Layout(dp=4, zero_stage=0), 1, "stop"),
        "restore": corrupted(Layout(dp=4, zero_stage=2), 1, "restore"),
    }


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    return run_ranks(4, all_of_four)


def test_a_loss_that_is_not_finite_on_one_rank_is_skipped_by_all_and_again_on_resume(
    told: list[dict[str, Any]],
) -> None:
    """WeatherGenerator#2724: NaN on rank 2 only."""
    for found in told:
        check_skipping(LAYOUTS[:1], found["skipping"], [2])


def test_a_spike_rolls_back_on_every_rank_once_and_the_budget_stops_the_next(told: list[dict[str, Any]]) -> None:
    for window, unchanged, said, reports in (found["spiking"] for found in told):
        assert len(window) == 8 and window == told[0]["spiking"][0] and unchanged
        assert said[0].startswith("RolledBack: step 10: the loss") and "robust deviations" in said[0]
        assert said[1].startswith("NumericalError: Step 11 stopped the run: the loss")
        assert "train.faults.max_skips=1 steps were skipped" in said[1]
        (report,) = reports
        assert (report["kind"], report["step"], report["slots"]) == ("rollback", 10, [])


def test_by_default_the_run_stops_and_the_rows_are_named(told: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(told):
        rows = f"{100 + 10 * rank}, {101 + 10 * rank}"
        assert f"The loss of step 1, slot {rank} is not finite (rows {rows})" in found["loss"]
        assert "Step 1 stopped the run: the gradient norm is not finite; lower train.lr" in found["norm"]


def test_one_flipped_bit_names_the_rank_and_the_tensor_before_it_reaches_the_weights(
    told: list[dict[str, Any]],
) -> None:
    for found in told:
        for said, _, unchanged in (found["stop"], found["restore"]):
            assert "Silent corruption before step 4: rank 1: other bits of 'decoder.norm.weight' than" in said
            assert unchanged
        said, reports, _ = found["stop"]
        assert said.startswith("NumericalError") and "resume from step 1 or before" in said and not reports
        said, reports, _ = found["restore"]
        assert said.startswith("RolledBack")
        assert [(r["kind"], r["ranks"], r["clean_step"]) for r in reports] == [("corruption", [1], 1)]


def undisturbed(rank: int, world: int) -> list[tuple[str, list[Any], bool]]:
    return [corrupted(layout, -1, "stop") for layout in LAYOUTS[1:3]]


@pytest.mark.full
def test_without_a_flipped_bit_replicas_are_equal_under_tensor_and_pipeline_parallelism() -> None:
    assert run_ranks(4, undisturbed) == [[("", [], False)] * 2] * 4
