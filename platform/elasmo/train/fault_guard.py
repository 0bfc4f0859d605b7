"""Stands between a step's gradient and the weights: all ranks look at what all ranks saw, and do the same.

The optimizer moves only if the verdict is `go`. A step that is skipped leaves weights and moments as they were; its
rows count as read. What has to start anew, after a rollback or a corrupted replica, raises `RolledBack` on every rank:
the worker group restarts from a checkpoint.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from elasmo.config import FaultsConfig
from elasmo.train.checkpoint_commit import Gather
from elasmo.train.engine import TrainEngine
from elasmo.train.fault_policy import RankView, Verdict, decide
from elasmo.train.loss import PREFIX, NumericalError, check_finite
from elasmo.train.replicas import Replica, odd_ranks, word_sums
from elasmo.train.step_gate import install_gate

Report = Callable[[Mapping[str, Any]], None]


class RolledBack(RuntimeError):
    """The run goes back to a checkpoint; its worker group has to start again."""


class FaultGuard:
    """One rank's part of the decisions about its steps.

    Attributes:
        optimizer_steps: that were taken, over all attempts.

    Args:
        engine: whose optimizer is guarded.
        gather: over all ranks.
        report: called on every rank with what happened before `RolledBack` is raised.
    """

    def __init__(self, engine: TrainEngine, faults: FaultsConfig, gather: Gather, report: Report) -> None:
        self._engine, self._faults, self._gather, self._report = engine, faults, gather, report
        self._skipped: dict[int, str] = {}
        self._window: deque[float] = deque(maxlen=faults.window)
        self._step, self._target_tokens, self._clean = 0, 1, 0
        self._loss_sum = 0.0
        self._bad: list[dict[str, Any]] = []
        self._record: dict[str, Any] | None = None
        self.optimizer_steps = 0
        # Ranks of a tensor-parallel group have the same losses; those of a sequence-parallel one have pieces of them.
        self._speaks = engine.mesh.place.tp == 0
        install_gate(engine.deepspeed, self._gate)

    def start(self, step: int, meta: Mapping[str, Any], skipped: Mapping[int, str]) -> None:
        """Takes up a run after `step` steps.

        Args:
            meta: of the checkpoint, empty at the run's start.
            skipped: steps that the run's log says were skipped, or are to be after a rollback.
        """
        saved = meta.get("faults", {})
        self._skipped = {int(number): reason for number, reason in saved.get("skipped", {}).items()} | dict(skipped)
        self._window.extend(saved.get("losses", ()))
        self._clean = step
        self.optimizer_steps = int(meta.get("optimizer_step", 0))

    def meta(self, done: int) -> dict[str, Any]:
        """What a checkpoint after `done` steps needs to go on with the same decisions."""
        skipped = {number: reason for number, reason in self._skipped.items() if number <= done}
        found = {"skipped": skipped, "losses": list(self._window)}
        return {"optimizer_step": self.optimizer_steps, **({"faults": found} if skipped or self._window else {})}

    def begin(self, step: int, target_tokens: int) -> None:
        """Before the first micro-batch of a step, as numbered in the log."""
        self._step, self._target_tokens = step, target_tokens
        self._loss_sum, self._bad, self._record = 0.0, [], None

    def check(self, losses: Tensor, slot: int, row_ids: Sequence[int]) -> None:
        """Sees a slot's losses before they reach a gradient.

        Raises:
            NumericalError: they are not finite, and that stops the run.
        """
        if self._faults.on_non_finite == "stop" and self._step not in self._skipped:
            check_finite(losses, self._step - 1, slot, row_ids)
        if self._watches:
            total = float(losses.detach().double().sum())
            self._loss_sum += total if self._speaks else 0.0
            if not math.isfinite(total):
                self._bad.append({"slot": slot, "rows": list(row_ids)})

    @property
    def skipped(self) -> dict[str, Any] | None:
        """Of the step just done: why it was skipped and the rows that were at fault; None if it was taken."""
        return self._record

    @property
    def _watches(self) -> bool:
        faults = self._faults
        return faults.on_non_finite != "stop" or faults.spike_z is not None or self._step in self._skipped

    def _gate(self, norm: float) -> bool:
        self._compare_replicas()
        verdict = self._decide(norm)
        if verdict.action == "go":
            self.optimizer_steps += 1
            if math.isfinite(verdict.loss):
                self._window.append(verdict.loss)
            return True
        slots = {item["slot"]: item for found in self._gather(self._bad) for item in found}
        record = {"reason": verdict.reason, "slots": [slots[slot] for slot in sorted(slots)]}
        if verdict.action == "stop":
            rows = ", ".join(str(row) for item in record["slots"] for row in item["rows"])
            raise NumericalError(
                f"Step {self._step} stopped the run: {verdict.reason}{f' (rows {rows})' if rows else ''}; "
                "lower train.lr, remove the rows, or set train.faults."
            )
        if verdict.action == "rollback":
            self._roll_back({"kind": "rollback", "step": self._step, **record}, verdict.reason)
        self._skipped[self._step] = verdict.reason
        self._record = {**record, "known": verdict.known}
        return False

    def _decide(self, norm: float) -> Verdict:
        if not self._watches:
            # The norm is of the whole gradient and the same on every rank: nothing to gather.
            return decide(self._step, (RankView(0.0, norm),), 1, (), {}, self._faults)
        own = torch.tensor([self._loss_sum, norm], dtype=torch.float64, device=self._engine.device)
        found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(found, own)
        ranks = [RankView(*view.tolist()) for view in found]
        return decide(self._step, ranks, self._target_tokens, tuple(self._window), self._skipped, self._faults)

    def _compare_replicas(self) -> None:
        every = self._faults.checksum_every
        if every is None or self._step % every or self._engine.mesh.zero.size == 1:
            return
        named = list(self._engine.deepspeed.module.named_parameters())
        names = tuple(name.removeprefix(PREFIX) for name, _ in named)
        own = Replica(self._engine.mesh.zero.ranks, names, word_sums(parameter for _, parameter in named))
        odd = odd_ranks(self._gather(own))
        if odd is None:
            self._clean = self._step - 1
            return
        sentence = odd.sentence(self._step)
        if self._faults.on_corruption == "stop":
            raise NumericalError(
                f"{sentence}; take that machine out and resume from step {self._clean} or before, or set "
                "train.faults.on_corruption=restore."
            )
        event = {"kind": "corruption", "step": self._step, "clean_step": self._clean, "reason": sentence}
        self._roll_back({**event, "ranks": list(odd.ranks), "tensor": odd.tensor}, sentence)

    def _roll_back(self, event: Mapping[str, Any], reason: str) -> None:
        self._report(event)
        self._gather(None)  # nobody leaves before it is on record
        raise RolledBack(f"step {self._step}: {reason}")
