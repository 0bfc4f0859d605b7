"""A layout in words, `tp=8,pp=4,micro_batch=2,recompute=attention+pointwise`, as a plan, or refused."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import get_args

from elasmo.simulate.accelerator import GIB
from elasmo.simulate.cluster import Cluster
from elasmo.simulate.memory import training_memory
from elasmo.simulate.model import Model
from elasmo.simulate.plan import Plan, PlanError, Schedule, refusals
from elasmo.simulate.search import KEEP, Job, UnfitError, layouts
from elasmo.simulate.training import USABLE

NUMBERS = ("dp", "tp", "pp", "cp", "ep", "zero", "micro_batch", "chunks", "attention_version")
FLAGS = (
    "sequence_parallel", "fused_attention", "dropout", "compiled", "overlap_tp", "overlap_dp", "overlap_ep",
    "expert_tp", "hybrid",
)  # fmt: skip
WORDS = {"schedule": get_args(Schedule), "context": ("ring", "ulysses")}
PARTS = (
    "attention", "pointwise", "half", "projections", "latents", "feed_forward", "experts", "experts_activation", "full",
)  # fmt: skip
NEAR = ("tp", "pp", "cp", "ep", "dp", "zero", "micro_batch", "chunks")


def read_layout(text: str, model: Model, cluster: Cluster, job: Job) -> Plan:
    """The plan that a layout in words is, with what the search would take for what it leaves out.

    `dp` is what the other cuts leave of the accelerators; norms are cut over tp, kernels are those written for the
    hardware, and communication runs beside compute, unless told otherwise.

    Raises:
        PlanError: words that are no layout, or a layout that cannot be, with the reason and the nearest that can.
    """
    said = _fields(text)
    cut = math.prod(int(str(said.get(name, 1))) for name in ("tp", "pp", "cp"))
    base: dict[str, object] = {"dp": max(1, cluster.count // max(1, cut))}
    base |= {"sequence_parallel": int(str(said.get("tp", 1))) > 1, "attention_version": 3, "overlap_tp": True}
    if int(str(said.get("chunks", 1))) > 1:
        base["schedule"] = "interleaved"
    plan = Plan(seq=job.seq, global_batch=job.global_batch, dtype=job.dtype).having(**{**base, **said})
    reasons = refusals(plan, model, cluster.count)
    if reasons:
        near = nearest(plan, layouts(model, cluster, Job(job.seq, job.global_batch, job.dtype)))
        legal = f"The nearest legal layout is {near}." if near is not None else "No layout of this batch is legal."
        raise PlanError(f"{'; '.join(reasons)}. {legal}")
    return plan


def _fields(text: str) -> dict[str, object]:
    said: dict[str, object] = {}
    known = {field.name for field in fields(Plan)}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        name = {"sp": "sequence_parallel", "micro-batch": "micro_batch"}.get(name, name)
        if name in NUMBERS and value.isdigit():
            said[name] = int(value)
        elif name in FLAGS and value in ("", "on", "off", "1", "0"):
            said[name] = value in ("", "on", "1")
        elif name in WORDS and value in WORDS[name]:
            said[name] = value
        elif name == "recompute" and (value == "none" or set(value.split("+")) <= set(PARTS)):
            said[name] = frozenset() if value == "none" else frozenset(value.split("+"))
        else:
            raise PlanError(f"layout={part} is not known; {_allowed(name if name in known else '')}.")
    return said


def _allowed(name: str) -> str:
    if name in NUMBERS:
        return f"{name} is a whole number, such as {name}=8"
    if name in FLAGS:
        return f"{name} is on or off"
    if name in WORDS:
        return f"{name} is one of {', '.join(WORDS[name])}"
    if name == "recompute":
        return f"recompute is none or parts joined by +, of {', '.join(PARTS)}"
    return f"use {', '.join((*NUMBERS, 'recompute', *WORDS, *FLAGS))}, such as tp=8,pp=4,recompute=full"


def nearest(asked: Plan, legal: Iterable[Plan]) -> Plan | None:
    """The layout that differs least, in doublings of its cuts; None where there is none."""
    return min(legal, key=lambda plan: _distance(asked, plan), default=None)


def _distance(a: Plan, b: Plan) -> float:
    return sum(abs(math.log2((getattr(a, name) + 1) / (getattr(b, name) + 1))) for name in NEAR)


def check_memory(plan: Plan, model: Model, cluster: Cluster, job: Job) -> None:
    """Refuses a plan that does not fit.

    Raises:
        UnfitError: by how much it does not, and what would: the same layout with more recompute, or the nearest.
    """
    usable = USABLE * min(group.chip.memory for group in cluster.groups)
    needed = training_memory(model, plan).total
    if needed <= usable:
        return
    text = (
        f"{plan} needs {needed / GIB:.1f} GiB a rank, {(needed - usable) / GIB:.1f} GiB more than the "
        f"{usable / GIB:.1f} GiB usable."
    )
    for keep in KEEP[1:]:
        more = plan.having(recompute=plan.recompute | keep)
        if training_memory(model, more).total <= usable:
            raise UnfitError(f"{text} It fits with recompute={'+'.join(sorted(more.recompute))}.")
    free = Job(job.seq, job.global_batch, job.dtype)
    roomy = (
        kept
        for each in layouts(model, cluster, free)
        for kept in (each.having(recompute=keep) for keep in KEEP)
        if training_memory(model, kept).total <= usable
    )
    near = nearest(plan, roomy)
    raise UnfitError(
        f"{text} " + (f"The nearest that fits is {near}." if near is not None else f"None of {cluster} fits.")
    )
