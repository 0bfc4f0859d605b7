"""One simulated training run for people and machines: the step, what its seconds and bytes go to, rates, goodput."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table

from elasmo.simulate.accelerator import GIB
from elasmo.simulate.cluster import Cluster
from elasmo.simulate.flops import FORMULA
from elasmo.simulate.goodput import Failures, Goodput, goodput
from elasmo.simulate.model import Model
from elasmo.simulate.show import step_json
from elasmo.simulate.training import Step

PARTS = {
    "matmul": "matrix products", "attention": "attention", "pointwise": "norms, activations, casts",
    "tp": "tensor-parallel communication", "cp": "context-parallel communication", "ep": "expert exchange",
    "fsdp": "gathering sharded weights", "launch": "waiting for the host's launches", "bubble": "pipeline bubble",
    "gradients": "gradient reduction", "optimizer": "optimizer", "host": "host", "straggling": "straggling",
    "data stall": "data stall",
}  # fmt: skip
"""What the names of a breakdown mean."""
CATEGORIES = {
    "weights": "weights", "gradients": "gradients", "optimizer": "optimizer states", "gathered": "gathered weights",
    "activations": "activations", "logits": "logits", "reserved": "context and buffers",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A step, repeated for as long as the cluster lasts.

    Attributes:
        left: what failures and checkpoints leave.
    """

    model: Model
    cluster: Cluster
    step: Step
    left: Goodput

    @property
    def tokens_per_s(self) -> float:
        """Of steps that count, failures and checkpoints included."""
        return self.step.tokens_per_s * self.left.useful


def run(model: Model, cluster: Cluster, step: Step, failures: Failures, elastic: bool) -> Run:
    node = min(group.chip.host for group in cluster.groups)
    return Run(model, cluster, step, goodput(cluster.count, failures, node, elastic))


def run_json(made: Run) -> dict[str, Any]:
    """A run as plain data."""
    usd = made.step.usd_per_mtoken
    return {
        "model": made.model.name, "parameters": made.model.parameters, "cluster": str(made.cluster),
        **step_json(made.step), "mfu_formula": FORMULA, "goodput": asdict(made.left),
        "useful_tokens_per_s": made.tokens_per_s,
        "useful_usd_per_mtoken": None if usd is None else usd / made.left.useful,
    }  # fmt: skip


def facts(made: Run) -> list[tuple[str, str]]:
    """Figures of a run, name and value."""
    step, left = made.step, made.left
    return [
        ("step", f"{step.seconds:.3f} s"),
        ("tokens/s", f"{step.tokens_per_s:,.0f}, {step.tokens_per_s_each:,.0f} each"),
        ("MFU, HFU", f"{step.mfu:.1%}, {step.hfu:.1%}"),
        ("memory of the fullest rank", f"{step.memory.total / GIB:.1f} GiB"),
        ("power", known_or(step.power_w, "{:.0f} W each")),
        ("energy", known_or(step.joules_per_token, "{:.3g} J/token")),
        ("cost", known_or(step.usd_per_mtoken, "{:.3g} $/Mtoken")),
        ("goodput", f"{left.useful:.2%}: {made.tokens_per_s:,.0f} tokens/s that count"),
        (
            "lost to",
            f"checkpoints {left.checkpoints:.2%} (every {left.interval_s / 60:.0f} min), redone {left.redone:.2%}, "
            f"recovery {left.recovery:.2%}, shrunk {left.shrunk:.2%}",
        ),
    ]


def known_or(value: float | None, text: str) -> str:
    return "unknown" if value is None else text.format(value)


def run_tables(made: Run) -> Group:
    """A run as tables. Every number in it is simulated."""
    step = made.step
    plan = step.plan
    whole = Table(
        title=f"{made.model.name or 'model'} ({made.model.parameters / 1e9:.1f} B parameters) on {made.cluster}, "
        f"simulated: {plan.global_batch} sequences of {plan.seq} tokens, {plan.dtype}\n{plan}",
        show_header=False, caption=f"MFU: {FORMULA}. HFU: with what is recomputed.",
    )  # fmt: skip
    for name, value in facts(made):
        whole.add_row(name, value)
    spent, held = Table(title="the step"), Table(title="memory of the fullest rank")
    for table, unit in ((spent, "seconds"), (held, "GiB")):
        table.add_column("goes to")
        table.add_column(unit, justify="right")
        table.add_column("share", justify="right")
    for name, seconds in sorted(step.breakdown.items(), key=lambda each: -each[1]):
        spent.add_row(PARTS.get(name, name), f"{seconds:.3f}", f"{seconds / step.seconds:.1%}")
    for name, meaning in CATEGORIES.items():
        size = getattr(step.memory, name)
        if size > 0:
            held.add_row(meaning, f"{size / GIB:.2f}", f"{size / step.memory.total:.1%}")
    return Group(whole, spent, held)
