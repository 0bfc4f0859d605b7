"""A DeepSpeed checkpoint goes on in our engine as it does in DeepSpeed, whose own loading code is the oracle."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elasmo.model.fragments import CheckpointError, FragmentReader
from elasmo.parallel.layout import Layout
from elasmo.parallel.mesh import make_mesh
from elasmo.parallel.shards import whole
from elasmo.train import checkpoint, deepspeed_adapter
from elasmo.train.checkpoint_import import import_checkpoint, places_in
from elasmo.train.deepspeed_checkpoint import open_checkpoint
from tests.gloo import run_ranks
from tests.train.test_checkpoint import SLOTS, Net, batch, settings

STATES = ("weight", "exp_avg", "exp_avg_sq")
SHAPES = {name: tuple(parameter.shape) for name, parameter in Net().named_parameters()}
FROZEN = "norm.bias"
SAVED, STEPS = 3, 10
Kind = tuple[int, str]
QUICK: list[Kind] = [(1, "float32"), (3, "float32")]
MORE: list[Kind] = [(2, "float32"), (1, "bfloat16"), (3, "bfloat16")]
"""ZeRO 3 replaces `F.linear` in its process, so it comes last."""


def net() -> Net:
    made = Net()
    made.norm.bias.requires_grad_(False)
    return made


def losses(engine: Any, first: int, last: int) -> list[float]:
    """Of whole global batches, by optimizer steps."""
    rank, world = dist.get_rank(), dist.get_world_size()
    found = []
    for step in range(first, last):
        total = torch.zeros(())
        for slot in range(rank, SLOTS + (-SLOTS) % world, world):
            x, y = batch(step, slot % SLOTS)
            real = 1.0 if slot < SLOTS else 0.0
            dtype = next(engine.module.parameters()).dtype
            loss = ((engine(x.to(dtype)).float() - y) ** 2).sum() * (real / (SLOTS * 15))
            total += loss.detach()
            engine.backward(loss * world, scale_wrt_gas=False)
            engine.step()
        dist.all_reduce(total)
        found.append(float(total))
    return found


def theirs(stage: int, dtype: str, world: int) -> Any:
    """An engine as a user of DeepSpeed makes it: no mpu, groups in another order than ours."""
    import deepspeed

    model, train = net(), settings(stage, dtype)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": train.weight_decay},
    ]
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": -(-SLOTS // world),
        "gradient_clipping": train.grad_clip,
        "bf16": {"enabled": dtype == "bfloat16"},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 1000, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
    return engine


def save_and_go_on(rank: int, world: int, kinds: list[Kind], root: str) -> dict[Kind, list[float]]:
    """For each kind the losses with which a fresh engine of DeepSpeed goes on from what another saved."""
    deepspeed_adapter.init_distributed(60)
    found = {}
    for stage, dtype in kinds:
        folder = str(Path(root) / f"{stage}-{dtype}")
        first = theirs(stage, dtype, world)
        losses(first, 0, SAVED)
        first.save_checkpoint(folder, tag="mine")
        again = theirs(stage, dtype, world)
        again.load_checkpoint(folder)
        found[stage, dtype] = losses(again, SAVED, SAVED + STEPS)
    return found


def put_together(folder: Path, state: str, out: Path) -> dict[str, torch.Tensor]:
    """Full tensors of a state by DeepSpeed's own script, which knows weights only: moments are put in their place."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    shutil.copytree(folder, out)
    for path in out.glob("*/*_optim_states.pt") if state != "weight" else ():
        saved = torch.load(path, weights_only=False)
        ours = saved["optimizer_state_dict"]
        flat = ours["fp32_flat_groups" if "fp32_flat_groups" in ours else "single_partition_of_fp32_groups"]
        base = ours["optimizer_state_dict" if "fp32_flat_groups" in ours else "base_optimizer_state"]["state"]
        for group, values in enumerate(flat):
            values.data = base[group][state][: values.numel()]
        torch.save(saved, path)
    return dict(get_fp32_state_dict_from_zero_checkpoint(str(out)))


Saved = tuple[Path, dict[Kind, list[float]]]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Checkpoints by two ranks."""
    root = tmp_path_factory.mktemp("quick")
    return root, run_ranks(2, save_and_go_on, QUICK, str(root))[0]


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    root = tmp_path_factory.mktemp("more")
    return root, run_ranks(2, save_and_go_on, MORE, str(root))[0]


def ours(rank: int, world: int, stage: int, dtype: str, folder: str) -> list[float]:
    deepspeed_adapter.init_distributed(60)
    model, mesh = net(), make_mesh(Layout(dp=world, zero_stage=stage))
    parallel = (mesh, {name: whole(parameter) for name, parameter in model.named_parameters()})
    engine = deepspeed_adapter.build_engine(model, settings(stage, dtype), -(-SLOTS // world), parallel)
    checkpoint.load(engine, folder, parallel[1], SHAPES)
    return losses(engine, SAVED, SAVED + STEPS)


def imported(saved: Path, out: Path) -> FragmentReader:
    source = open_checkpoint(saved)
    import_checkpoint(source, out, SHAPES, places_in(source.shapes, SHAPES), {})
    return FragmentReader(out / f"step-{SAVED:06d}")


def check_states(saved: Path, kind: Kind, out: Path) -> None:
    folder = saved / f"{kind[0]}-{kind[1]}"
    reader = imported(folder, out)
    reader.verify()
    for state in STATES:
        for name, value in put_together(folder, state, out / state).items():
            if name != FROZEN:
                assert torch.equal(reader.tensor(name, state), value), (name, state)
    assert torch.equal(reader.tensor(FROZEN), Net().norm.bias.to(getattr(torch, kind[1])).float())
    assert reader.states(FROZEN) == ("weight",)
    assert reader.manifest.meta["optimizer_step"] == SAVED


@pytest.mark.parametrize("kind", QUICK, ids=str)
def test_masters_and_moments_are_those_that_deepspeed_puts_together(quick: Saved, kind: Kind, tmp_path: Path) -> None:
    check_states(quick[0], kind, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("kind", MORE, ids=str)
def test_so_are_those_of_other_stages_and_of_bfloat16(more: Saved, kind: Kind, tmp_path: Path) -> None:
    check_states(more[0], kind, tmp_path)


def check_losses(saved: Saved, kind: Kind, stage: int, world: int, out: Path, tolerance: float = 1e-5) -> None:
    reader = imported(saved[0] / f"{kind[0]}-{kind[1]}", out)
    found = run_ranks(world, ours, stage, kind[1], reader.folder)[0]
    assert found == pytest.approx(saved[1][kind], rel=tolerance)


def test_losses_go_on_as_in_deepspeed_under_another_stage_and_size(quick: Saved, tmp_path: Path) -> None:
    check_losses(quick, (3, "float32"), 1, 1, tmp_path)


@pytest.mark.full
def test_zero_1_goes_on_under_zero_3_and_more_ranks(quick: Saved, tmp_path: Path) -> None:
    check_losses(quick, (1, "float32"), 3, 3, tmp_path)


@pytest.mark.full
def test_zero_2_goes_on_without_zero(more: Saved, tmp_path: Path) -> None:
    check_losses(more, (2, "float32"), 0, 2, tmp_path)


@pytest.mark.full
def test_bfloat16_goes_on_in_the_same_layout(more: Saved, tmp_path: Path) -> None:
    """Within rounding: parameters are reduced in another order than theirs."""
    check_losses(more, (1, "bfloat16"), 1, 2, tmp_path, 2e-3)


@pytest.fixture
def zero_1(quick: Saved, tmp_path: Path) -> Path:
    return Path(shutil.copytree(quick[0] / "1-float32", tmp_path / "copy"))


def test_a_missing_file_and_a_model_parallel_run_are_refused(zero_1: Path) -> None:
    tag = zero_1 / "mine"
    (tag / "zero_pp_rank_1_mp_rank_00_optim_states.pt").rename(tag / "aside")
    with pytest.raises(CheckpointError, match=r"mine has 1 files \*_optim_states\.pt of 2 ranks; restore"):
        open_checkpoint(zero_1)
    (tag / "aside").rename(tag / "zero_pp_rank_0_mp_rank_01_optim_states.pt")
    with pytest.raises(CheckpointError, match="written with tensor, pipeline or expert parallelism"):
        open_checkpoint(zero_1)
    with pytest.raises(CheckpointError, match=r"holds no DeepSpeed checkpoint"):
        open_checkpoint(zero_1, tag="other")


def test_a_file_that_was_cut_short_is_refused(zero_1: Path) -> None:
    path = zero_1 / "mine" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(CheckpointError, match=r"optim_states\.pt cannot be read"):
        open_checkpoint(zero_1).rank(1)


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("ran",))


def test_a_file_that_would_run_code_is_refused_unless_it_is_trusted(
    zero_1: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = zero_1 / "mine" / "mp_rank_00_model_states.pt"
    state = torch.load(path, weights_only=True)
    torch.save({**state, "extra": Runs()}, path, pickle_module=pickle)
    with pytest.raises(CheckpointError, match=r"could run code when read; pass --trust"):
        open_checkpoint(zero_1)
    assert capsys.readouterr().out == ""
    assert open_checkpoint(zero_1, trust=True).steps == SAVED
    assert capsys.readouterr().out == "ran\n"


def test_tensors_that_do_not_fit_the_model_are_named(zero_1: Path) -> None:
    source = open_checkpoint(zero_1).shapes
    with pytest.raises(CheckpointError, match=r"has tensor 'first\.bias', which the model lacks"):
        places_in(source, {name: shape for name, shape in SHAPES.items() if name != "first.bias"})
    with pytest.raises(CheckpointError, match=r"'first\.bias' in shape \(13,\), the model needs \(14,\)"):
        places_in(source, {**SHAPES, "first.bias": (14,)})
    with pytest.raises(CheckpointError, match=r"lacks tensor 'third'"):
        places_in(source, {**SHAPES, "third": (1,)})
