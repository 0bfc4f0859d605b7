"""The training loop of one rank: read the plan's slots, run them on DeepSpeed, commit, checkpoint, evaluate."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
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
from elasmo.model.fragments import FragmentReader, read_manifest
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.stores import open_store
from elasmo.parallel import planner
from elasmo.train import checkpoint, deepspeed_adapter, retention, run_folder, run_state
from elasmo.train.chaos import Chaos
from elasmo.train.checkpoint_restore import RestorePoint, restore_newest
from elasmo.train.checkpoint_saver import CheckpointSaver, Saved
from elasmo.train.cursor import cursor
from elasmo.train.engine import TrainEngine
from elasmo.train.evaluate import evaluate
from elasmo.train.fault_guard import FaultGuard
from elasmo.train.freeze import freeze
from elasmo.train.host_memory import keep_freed_memory
from elasmo.train.initial import load_initial
from elasmo.train.ledger import RankStep, Restored
from elasmo.train.loss import Sums
from elasmo.train.memory_saver import MemorySaver
from elasmo.train.memory_tier import open_memory
from elasmo.train.meter import Meter, device_facts
from elasmo.train.randomness import RULE, seed_step
from elasmo.train.schedule import learning_rate
from elasmo.train.snapshot import Snapshot

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
        self.meter = Meter(self.config, model, processor.vocab_size, self._reads_energy())
        begun = self._begin()
        self.attempt, self.restore_from = begun.attempt, begun.point
        self.start_step = begun.point.step if begun.point is not None else 0
        if self.attempt == 1 and self.rank == 0:
            ray.get(self.state.device.remote(device_facts(self.config)), timeout=run_state.CALL_TIMEOUT_S)
        if self.restore_from is None:
            random = load_initial(model, self.config.train.init_from)
            if self.config.train.init_from and random and self.rank == 0:
                logger.warning("No source of train.init_from has %s; they start at random.", ", ".join(random))
        self.engine = TrainEngine(model, self.config.train, self.layout, self.config.train.slots, timeout_s)
        self.clock = None if torch.cuda.is_available() else deepspeed_adapter.install_clock()
        self.dp_rank = self.engine.mesh.place.dp
        self.guard = FaultGuard(self.engine, self.config.train.faults, self._gather, self._faulted)
        self.skipped = begun.skipped
        self.chaos = Chaos(self.config.train.chaos, self.rank, self.attempt)
        self.substituted = 0
        self.checkpoints = run_folder.checkpoint_root(self.folder)
        # A group of the writer's own: its collectives run on a thread, beside those of the steps.
        deadline = timedelta(seconds=self.config.train.checkpoint_timeout_s)
        writers, copiers = (dist.new_group(backend="gloo", timeout=deadline) for _ in range(2))
        self.saver = CheckpointSaver(
            self.checkpoints, self.rank, partial(self._gather, group=writers), self.config.train.checkpoint_async
        )
        self.memory_store = open_memory(settings.run_id, begun.holders, run_state.NAMESPACE)
        gather = partial(self._gather, group=copiers)
        self.memory = MemorySaver(self.memory_store, self.rank, gather, self._memorized) if begun.holders else None

    def restore(self) -> None:
        """Loads the checkpoint the ranks agreed on, or the newest older one that is whole, if there is one."""
        meta: Mapping[str, Any] = {}
        own, began = Restored(), time.perf_counter()
        if self.restore_from is not None:
            point, reader = restore_newest(self.restore_from, self._read, self._gather, self._older)
            own = Restored(reader.bytes_read, point.tier, time.perf_counter() - began)
            checkpoint.finish(self.engine.deepspeed, reader)
            self.start_step, meta = point.step, reader.manifest.meta
        self.guard.start(self.start_step, meta, self.skipped)
        ranks: list[Restored] = self._gather(own)
        if self.rank == 0:
            total = Restored(sum(read.bytes for read in ranks), own.tier, max(read.seconds for read in ranks))
            ray.get(self.state.restored.remote(self.attempt, total), timeout=run_state.CALL_TIMEOUT_S)
        self._gather(None)  # what was refused is set aside: it may have been the best
        self.best = self._read_best()

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
            if self.memory is not None and not last and done % (train.memory.every or 1) == 0:
                self.memory.save(self._snapshot(), done, self._meta(done))
            if last or best or done % train.checkpoint_every == 0:
                self._save(done, best)
            if last or done % train.report_every == 0:
                ray.train.report({"step": done, **_scalars(report)})
        self._finish_saving()
        ray.get(self.state.progress.remote(), timeout=run_state.CALL_TIMEOUT_S)  # every report before it is written

    def _read(self, point: RestorePoint) -> FragmentReader:
        """This rank's part of a checkpoint into its engine; see `checkpoint.read`."""
        wanted = cursor(self.config, self.gold, point.step)
        in_memory = point.tier == "memory"
        place = self.memory_store.child(retention.folder_name(point.step)) if in_memory else open_store(point.url)
        checkpoint.check_resumable(read_manifest(place), wanted, self.processor_hash, place.url)
        return checkpoint.read(self.engine.deepspeed, place, self.engine.shards, self.engine.shapes)

    def _older(self, refused: RestorePoint, reason: str) -> RestorePoint | None:
        if self.rank == 0:
            logger.warning("Checkpoint of step %d is refused: %s", refused.step, reason)
        found: RestorePoint | None = self._ask(lambda: self.state.older.remote(self.attempt, refused, reason))
        return found

    def _ask(self, call: Callable[[], Any]) -> Any:
        """What the run's state answers rank 0, on every rank."""
        answer: list[Any] = [None]
        if self.rank == 0:
            answer[0] = ray.get(call(), timeout=run_state.CALL_TIMEOUT_S)
        dist.broadcast_object_list(answer, src=0)
        return answer[0]

    def _reads_energy(self) -> bool:
        """A GPU's counter is its rank's, a node's is that of the first rank on it."""
        return torch.cuda.is_available() or ray.train.get_context().get_local_rank() == 0

    def _begin(self) -> run_state.Beginning:
        train = self.config.train
        nodes = tuple(self._gather(ray.get_runtime_context().get_node_id()))
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
        begun: run_state.Beginning = self._ask(lambda: self.state.begin.remote(self.world, plan, nodes))
        return begun

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
            self.chaos.losses(step + 1, losses)
            self.guard.check(losses, arrived[micro].slot, arrived[micro].row_ids)

        self.chaos.begin(step + 1, self.engine.deepspeed.module, self.checkpoints)
        self.guard.begin(step + 1, self.plan.target_tokens(step))
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
        samples = (sample for rows in arrived for sample in rows.samples)
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
            skipped=self.guard.skipped,
            flops=self.meter.flops(samples) if self.engine.leads else (0.0, 0.0),
            joules=self.meter.joules(),
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

    def _snapshot(self) -> Snapshot:
        return checkpoint.take(self.engine.deepspeed, (self.engine.mesh, self.engine.shards))

    def _meta(self, done: int) -> dict[str, Any]:
        """What training resumes with after `done` steps."""
        return {
            **self.guard.meta(done),
            "cursor": cursor(self.config, self.gold, done),
            "schedule": {"step": done, "next_lr": learning_rate(self.config.train, done)},
            "randomness": RULE,
            "config": self.config.model_dump(mode="json"),
            "processor_hash": self.processor_hash,
            "versions": run_folder.versions(),
            "world": self.world,
            "layout": asdict(self.layout),
        }

    def _save(self, done: int, best: bool) -> None:
        self.saver.save(self._snapshot(), done, self._meta(done), partial(self._committed, done, best, self.best))

    def _finish_saving(self) -> None:
        self.saver.finish()
        if self.memory is not None:
            self.memory.finish()

    def _memorized(self, event: Mapping[str, Any]) -> None:
        self.state.memorized.remote(self.attempt, dict(event))

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

    def _faulted(self, event: Mapping[str, Any]) -> None:
        """The run goes back to a checkpoint; the one in flight shall be whole by then."""
        self._finish_saving()
        if self.rank == 0:
            ray.get(self.state.faulted.remote(self.attempt, dict(event)), timeout=run_state.CALL_TIMEOUT_S)

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
