"""The training loop of one rank: read the plan's slots, run them on DeepSpeed, commit, checkpoint, evaluate."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.train
import torch
import torch.distributed as dist
from torch import Tensor

from elasmo.config import Config
from elasmo.data.gold import GoldError
from elasmo.data.gold_mixture import GoldMixture
from elasmo.data.plan import Slot, StepPlan, slot_digest
from elasmo.data.stream import TRAIN, SlotRows, direct, from_shard, make_plan, open_gold
from elasmo.model import lora
from elasmo.model.encoded import Encoded
from elasmo.model.fragments import read_manifest
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.parallel import planner
from elasmo.train import checkpoint, deepspeed_adapter, retention, run_folder, run_state
from elasmo.train.checkpoint_saver import CheckpointSaver, Saved
from elasmo.train.cursor import cursor
from elasmo.train.engine import TrainEngine
from elasmo.train.evaluate import evaluate
from elasmo.train.freeze import freeze
from elasmo.train.host_memory import keep_freed_memory
from elasmo.train.initial import load_initial
from elasmo.train.ledger import RankStep
from elasmo.train.loss import Sums, check_finite
from elasmo.train.randomness import RULE, seed_step
from elasmo.train.schedule import learning_rate

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoopSettings:
    """What a worker needs to know: the whole configuration and where the run lives."""

    config: Config
    run_id: str
    folder: str


def train_loop(arguments: dict[str, LoopSettings]) -> None:
    """Entry point of a Ray Train worker."""
    settings = arguments["settings"]
    torch.set_num_threads(settings.config.train.workers.threads)
    keep_freed_memory()
    rank = Rank(settings)
    rank.restore()
    rank.run()


class Rank:
    """One training rank from its start to the end of the run or of its worker group."""

    def __init__(self, settings: LoopSettings) -> None:
        self.config = settings.config
        self.folder = Path(settings.folder)
        self.state = run_state.connect(settings.run_id)
        context = ray.train.get_context()
        self.rank, self.world = context.get_world_rank(), context.get_world_size()
        timeout_s = self.config.train.workers.collective_timeout_s
        deepspeed_adapter.init_distributed(timeout_s)
        self.gold: GoldMixture = open_gold(self.config)
        self.plan: StepPlan = make_plan(self.config, self.gold)
        self.layout = planner.choose(self.world, self.config.train)
        processor = self.gold.processor()
        self.processor_hash = processor.fingerprint()
        model = MultimodalDecoder(self.config.model, processor.vocab_size, processor.table_fields)
        model.init_weights(self.config.seed)
        if self.config.train.lora is not None:
            lora.add_adapters(model, self.config.train.lora, self.config.seed)
        patterns = lora.FROZEN if self.config.train.lora is not None else ()
        self.frozen = freeze(model, (*patterns, *self.config.train.freeze))
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        if torch.cuda.is_available():
            model.to(ray.train.torch.get_device())
        self.attempt, self.start_step, self.restore_from = self._begin()
        if self.restore_from is None:
            random = load_initial(model, self.config.train.init_from)
            if self.config.train.init_from and random and self.rank == 0:
                logger.warning("No source of train.init_from has %s; they start at random.", ", ".join(random))
        self.engine = TrainEngine(model, self.config.train, self.layout, self.config.train.slots, timeout_s)
        self.clock = None if torch.cuda.is_available() else deepspeed_adapter.install_clock()
        self.dp_rank = self.engine.mesh.place.dp
        self.best = self._read_best()
        self.substituted = 0
        self.checkpoints = run_folder.checkpoint_root(self.folder)
        # A group of the writer's own: its collectives run on a thread, beside those of the steps.
        deadline = timedelta(seconds=self.config.train.checkpoint_timeout_s)
        writers = dist.new_group(backend="gloo", timeout=deadline)
        self.saver = CheckpointSaver(
            self.checkpoints, self.rank, partial(self._gather, group=writers), self.config.train.checkpoint_async
        )

    def restore(self) -> None:
        """Loads the checkpoint the ranks agreed on, if there is one."""
        bytes_read = 0
        if self.restore_from is not None:
            engine = self.engine
            manifest = read_manifest(self.restore_from)
            wanted = cursor(self.config, self.gold, self.start_step)
            checkpoint.check_resumable(manifest, wanted, self.processor_hash, self.restore_from)
            reader = checkpoint.load(engine.deepspeed, self.restore_from, engine.shards, engine.shapes)
            bytes_read = reader.bytes_read
        total = sum(self._gather(bytes_read))
        if self.rank == 0:
            ray.get(self.state.restored.remote(self.attempt, total), timeout=run_state.CALL_TIMEOUT_S)

    def run(self) -> None:
        """Trains from the restored step to the last."""
        train = self.config.train
        stream = self._stream()
        for step in range(self.start_step, train.last_step):
            report = self._step(step, stream)
            self.state.rank_step.remote(self.attempt, self.rank, report)
            done = step + 1
            last = done == train.last_step
            best = False
            if last or done % train.eval_every == 0:
                best = self._evaluate(done)
            if last or best or done % train.checkpoint_every == 0:
                self._save(done, best)
            if last or done % train.report_every == 0:
                ray.train.report({"step": done, **_scalars(report)})
        self.saver.finish()
        ray.get(self.state.progress.remote(), timeout=run_state.CALL_TIMEOUT_S)  # every report before it is written

    def _begin(self) -> tuple[int, int, str | None]:
        train = self.config.train
        agreed: list[Any] = [None]
        nodes = self._gather(ray.get_runtime_context().get_node_id())
        if self.rank == 0:
            plan = {
                **asdict(self.layout),
                "global_batch": train.global_batch,
                "micro_batch": train.micro_batch,
                "slots": train.slots,
                "micro_steps": self.plan.micro_steps(step=0, world=self.layout.dp),
                "lr": train.lr,
                "parameters": self.parameters,
                "frozen_tensors": len(self.frozen),
            }
            begin = self.state.begin.remote(self.world, plan, tuple(nodes))
            agreed[0] = ray.get(begin, timeout=run_state.CALL_TIMEOUT_S)
        dist.broadcast_object_list(agreed, src=0)
        attempt, start, folder = agreed[0]
        return attempt, start, folder

    def _stream(self) -> Iterator[SlotRows]:
        if self.config.data.engine == "direct":
            steps = self.config.train.last_step
            return direct(self.plan, self.gold, self.dp_rank, self.layout.dp, self.start_step, steps)
        return from_shard(ray.train.get_dataset_shard(TRAIN))

    def _step(self, step: int, stream: Iterator[SlotRows]) -> RankStep:
        started = time.perf_counter()
        slots = self.plan.assign(step, self.layout.dp)[self.dp_rank]
        of_all = len(self.plan.slots(step))
        micro_steps = self.engine.micro_steps(of_all)
        seed_step(self.config.seed, step, self.dp_rank)
        deepspeed_adapter.set_lr(self.engine.deepspeed, learning_rate(self.config.train, step))
        arrived: list[SlotRows] = []
        waits: list[float] = []

        def feed() -> Iterator[tuple[Encoded, ...] | None]:
            for micro in range(micro_steps):
                before = time.perf_counter()
                if micro < len(slots):
                    arrived.append(self._next(stream, slots[micro]))
                waits.append(time.perf_counter() - before)
                yield arrived[micro].samples if micro < len(slots) else None

        def check(micro: int, losses: Tensor) -> None:
            check_finite(losses, step, arrived[micro].slot, arrived[micro].row_ids)

        sums, digests, computed = Sums(), {}, 0.0
        outputs = self.engine.step(feed(), self.plan.target_tokens(step), check, of_all)
        for micro in range(micro_steps):
            before = time.perf_counter()
            output = next(outputs)
            computed += time.perf_counter() - before
            if output is not None:
                rows = arrived[micro]
                digests[rows.slot] = slot_digest(rows.step, rows.slot, rows.row_ids)
                if self.engine.leads:
                    sums.add(output.losses, output.correct, output.batch, rows.modalities)
        communicated = self.clock.take() if self.clock is not None else 0.0
        total, waited = time.perf_counter() - started, sum(waits)
        seconds = {
            "step": total,
            "data_wait": waited,
            "compute": computed - waited - communicated,
            "communication": communicated,
            "other": max(0.0, total - computed),
        }
        return RankStep(
            step=step + 1,
            digests=digests,
            loss_sum=sums.loss,
            target_tokens=sums.tokens,
            seconds=seconds,
            tokens=self.plan.tokens(slots if self.engine.leads else ()),
            lr=learning_rate(self.config.train, step),
            grad_norm=deepspeed_adapter.grad_norm(self.engine.deepspeed),
            leads=self.engine.leads,
            substituted=tuple({"slot": rows.slot, **vars(row)} for rows in arrived for row in rows.substituted),
        )

    def _next(self, stream: Iterator[SlotRows], expected: Slot) -> SlotRows:
        rows = next(stream, None)
        if rows is None:
            raise RuntimeError(f"The data stream ended before step {expected.step + 1}, slot {expected.slot}.")
        self.substituted += len(rows.substituted)
        if self.substituted > self.config.data.max_substitutes:
            raise GoldError(
                f"{self.substituted} rows of rank {self.rank} did not decode, data.max_substitutes is "
                f"{self.config.data.max_substitutes}; the last one: {rows.substituted[-1].reason}"
            )
        targets = sum(sample.costs().target for sample in rows.samples)
        if targets != self.plan.slot_targets(expected):
            raise GoldError(
                f"Step {expected.step + 1}, slot {expected.slot} has {targets} target tokens, gold's index says "
                f"{self.plan.slot_targets(expected)}: the loss would be divided by the wrong number; ingest again."
            )
        return rows

    def _evaluate(self, done: int) -> bool:
        started = time.perf_counter()
        sums = evaluate(self.engine, self.gold, self.config.train.micro_batch)
        total = Sums()
        for part in self._gather(sums):
            total.merge(part)
        accuracy = total.accuracy()
        # No row of running text is predicted whole, so there the loss tells which checkpoint is best.
        answers = self.config.train.loss_on == "answers"
        metric = float(np.mean(list(accuracy.values()))) if answers else -total.mean_loss()
        best = metric > self.best
        self.best = max(metric, self.best)
        if self.rank == 0:
            event = {
                "step": done,
                "loss": total.mean_loss(),
                "loss_by_modality": total.loss_by_modality(),
                "accuracy": accuracy,
                "rows": sum(total.rows.values()),
                "best": best,
                "seconds": time.perf_counter() - started,
            }
            ray.get(self.state.evaluated.remote(self.attempt, event), timeout=run_state.CALL_TIMEOUT_S)
        return best

    def _save(self, done: int, best: bool) -> None:
        train = self.config.train
        meta = {
            "optimizer_step": done,
            "cursor": cursor(self.config, self.gold, done),
            "schedule": {"step": done, "next_lr": learning_rate(train, done)},
            "randomness": RULE,
            "config": self.config.model_dump(mode="json"),
            "processor_hash": self.processor_hash,
            "versions": run_folder.versions(),
            "world": self.world,
            "layout": asdict(self.layout),
        }
        snapshot = checkpoint.take(self.engine.deepspeed, (self.engine.mesh, self.engine.shards))
        self.saver.save(snapshot, done, meta, partial(self._committed, done, best, self.best))

    def _committed(self, done: int, best: bool, score: float, saved: Saved) -> None:
        """A checkpoint exists; on the writing thread, which must not issue collectives of the training's groups."""
        if self.rank != 0:
            return
        name = retention.folder_name(done)
        if best:
            metric = "mean_accuracy" if self.config.train.loss_on == "answers" else "negative_loss"
            retention.write_best(self.folder, name, metric, score)
        retention.prune(self.checkpoints, self.config.train.keep_checkpoints, retention.pinned(self.folder))
        event = {
            "step": done,
            "path": f"checkpoints/{name}",
            "bytes": saved.manifest.bytes(),
            "best": best,
            "seconds": saved.stalled_s,
            "waited": saved.waited_s,
            "copied": saved.copied_s,
            "written": saved.written_s,
        }
        ray.get(self.state.checkpointed.remote(self.attempt, event), timeout=run_state.CALL_TIMEOUT_S)

    def _gather(self, value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
        out: list[Any] = [None] * self.world
        dist.all_gather_object(out, value, group=group)
        return out

    def _read_best(self) -> float:
        best = retention.read_best(self.folder)
        return float(best["value"]) if best is not None else -math.inf


def _scalars(report: RankStep) -> dict[str, float]:
    return {
        "loss": sum(report.loss_sum.values()) / max(1, sum(report.target_tokens.values())),
        "lr": report.lr,
        **{f"{name}_s": value for name, value in report.seconds.items()},
    }
