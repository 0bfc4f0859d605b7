"""The eight interventions on a training run: each on or off, one after another, alone, and left out, at any scale.

Every rung is a search: the cheapest layout that fits in memory with what is switched on, so that a run without sharded
state is not charged for a layout that nobody would choose for it. An intervention changes what is searched or how the
step is simulated, never a result: precision, kernels, stages of ZeRO, what may be recomputed, padding that is counted
from a distribution of samples, schedules, overlap, loading and failures. Results are of useful tokens: padding, redone
steps and waiting are paid for and bring nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from elasmo.simulate.calibration import Calibration
from elasmo.simulate.cluster import Cluster
from elasmo.simulate.flops import step_flops
from elasmo.simulate.goodput import Failures, goodput
from elasmo.simulate.memory import training_memory
from elasmo.simulate.model import Model
from elasmo.simulate.plan import Plan, PlanError, refusals
from elasmo.simulate.power import power_w
from elasmo.simulate.samples import Samples
from elasmo.simulate.search import KEEP, Job, layouts
from elasmo.simulate.training import Step, fits, simulate_step

PRECISION, ATTENTION, SHARDING, RECOMPUTE, PACKING, INTERLEAVING, OVERLAP, STREAMING = INTERVENTIONS = (
    "mixed precision", "IO-aware attention", "sharded optimizer", "selective recompute, sequence parallelism",
    "packing, modality balance", "interleaved pipeline", "compute-communication overlap",
    "streamed data, elastic recovery",
)  # fmt: skip
EVERYTHING = frozenset(INTERVENTIONS)
COARSE: tuple[frozenset[str], ...] = (frozenset(), frozenset({"full"}))
"""What is recomputed without the fourth intervention: nothing, or every layer from its input."""


@dataclass(frozen=True)
class Case:
    """A run, and the world that it runs in.

    Attributes:
        dtype: of the products with mixed precision. start: without; None where the hardware has no known 32-bit peak.
        samples: lengths as they come; None: one stream of tokens that is cut at `seq`, in which nothing is padded.
        media_per_s: media that one host reads and decodes a second.
        failures: how the cluster fails.
        fixed: fields of the layout that every rung keeps.
    """

    model: Model
    cluster: Cluster
    seq: int
    global_batch: int
    dtype: str = "bf16"
    start: str | None = "tf32"
    samples: Samples | None = None
    media_per_s: float = 1000.0
    failures: Failures = field(default_factory=Failures)
    fixed: tuple[tuple[str, int], ...] = ()
    calibration: Calibration | None = None

    @cached_property
    def candidates(self) -> tuple[Plan, ...]:
        """Layouts that every rung chooses from, of all schedules and stages."""
        wanted = dict(self.fixed) if "cp" in dict(self.fixed) or self.seq > 16_384 else {**dict(self.fixed), "cp": 1}
        job = Job(self.seq, self.global_batch, self.dtype, tuple(wanted.items()))
        found = tuple(plan for plan in layouts(self.model, self.cluster, job) if plan.pp & (plan.pp - 1) == 0)
        if not found:
            raise PlanError(f"No layout of {self.cluster} is legal for global_batch={self.global_batch}; change it.")
        return found

    @cached_property
    def hosts(self) -> float:
        return sum(group.count / group.chip.host for group in self.cluster.groups)

    @cached_property
    def document(self) -> float | None:
        """Tokens that one of a packed sequence may attend to; None where there are no samples."""
        return None if self.samples is None else self.samples.attended(self.seq)

    @cached_property
    def shares(self) -> tuple[float, float]:
        """Of a batch's positions those that hold tokens of samples: padded, and packed."""
        return (1.0, 1.0) if self.samples is None else (self.samples.padded(self.seq), self.samples.packed(self.seq))

    def full(self, packed: bool) -> float:
        return self.shares[1] if packed else self.shares[0]

    def sequences_per_sample(self, packed: bool) -> float:
        return self.samples.tokens / (self.seq * self.full(packed)) if self.samples is not None else 1.0

    def filled(self, packed: bool) -> Model:
        """The model with the media of a sequence; balanced, no rank has more than another."""
        each = self.sequences_per_sample(packed)
        spread = self.samples.media_spread if self.samples is not None else None
        return replace(
            self.model,
            towers=tuple(
                replace(
                    tower, media=tower.media / each,
                    spread=0.0 if packed else tower.spread if spread is None else spread,
                )
                for tower in self.model.towers
            ),
        )  # fmt: skip

    def useful_flops(self, tokens: float) -> float:
        """Model FLOPs of tokens of samples, the same however they are packed."""
        if self.samples is None:
            return step_flops(self.model, self.seq, tokens / self.seq)
        own = self.samples.tokens
        towers = tuple(replace(tower, media=tower.media * self.seq / own) for tower in self.model.towers)
        model = replace(self.model, towers=towers)
        return step_flops(model, self.seq, tokens / self.seq, document=self.document)


@dataclass(frozen=True)
class Rung:
    """What a run comes to with some interventions.

    Attributes:
        step: the step that is simulated, of all positions.
        seconds: of a step with its share of stalls, failures and recovery.
        useful: share of positions that hold tokens of samples. goodput: share of time in steps that count.
        mfu: model FLOPs of useful tokens over the peak of the case's dtype, the same for every rung.
        usd_per_mtoken, joules_per_token: of useful tokens; None where price or power is not known.
    """

    on: frozenset[str]
    step: Step
    seconds: float
    useful: float
    goodput: float
    mfu: float
    tokens_per_s: float
    usd_per_mtoken: float | None
    joules_per_token: float | None


def applied(case: Case, plan: Plan, on: frozenset[str]) -> Plan | None:
    """A candidate as it is with these interventions; None where they do not allow it."""
    if INTERLEAVING not in on and plan.chunks > 1:
        return None
    if SHARDING not in on and plan.zero > 1:
        return None
    if PRECISION not in on and case.start is not None:
        # Kernels of FlashAttention 2 and 3 take 16 bits; those for 32 bits are of the first kind.
        plan = plan.having(dtype=case.start, attention_version=1)
    return plan.having(
        fused_attention=ATTENTION in on,
        zero=plan.zero if SHARDING in on else 0,
        sequence_parallel=RECOMPUTE in on and plan.tp > 1,
        document=case.document if PACKING in on else None,
        overlap_dp=OVERLAP in on, overlap_tp=OVERLAP in on, overlap_ep=OVERLAP in on and plan.ep > 1,
    )  # fmt: skip


def plans(case: Case, on: frozenset[str]) -> Iterator[Plan]:
    """Plans of a rung that fit, each with the least recompute."""
    least = min((group.chip for group in case.cluster.groups), key=lambda chip: chip.memory)
    model = case.filled(PACKING in on)
    for candidate in case.candidates:
        plan = applied(case, candidate, on)
        if plan is None or refusals(plan, model, case.cluster.count):
            continue
        for keep in KEEP if RECOMPUTE in on else COARSE:
            kept = plan.having(recompute=keep)
            if fits(training_memory(model, kept), least):
                yield kept
                break


def rung(case: Case, on: frozenset[str]) -> Rung | None:
    """The run with these interventions in its best layout; None where none fits in memory."""
    found = [outcome(case, plan, on) for plan in plans(case, on)]
    return max(found, key=lambda each: each.tokens_per_s, default=None)


def outcome(case: Case, plan: Plan, on: frozenset[str]) -> Rung:
    """A plan with these interventions, in useful tokens and with what data and failures take."""
    packed, streamed = PACKING in on, STREAMING in on
    useful = case.full(packed)
    model = case.filled(packed)
    media = sum(tower.media for tower in model.towers) * case.global_batch
    loading = media / (case.hosts * case.media_per_s)
    step = simulate_step(model, plan, case.cluster, case.calibration, data_s=loading if streamed else 0.0)
    one = step.seconds + (0.0 if streamed else loading)
    host = min(group.chip.host for group in case.cluster.groups)
    left = goodput(case.cluster.count, case.failures, node=host, elastic=streamed)
    seconds = one / left.useful
    tokens = case.seq * case.global_batch * useful
    peak = sum(group.count * group.chip.peak(case.dtype) for group in case.cluster.groups)
    price = case.cluster.price_usd_h
    return Rung(
        on=on, step=step, seconds=seconds, useful=useful, goodput=left.useful,
        mfu=case.useful_flops(tokens) / seconds / peak,
        tokens_per_s=tokens / seconds,
        usd_per_mtoken=None if price is None else price / 3600 * seconds / tokens * 1e6,
        joules_per_token=_joules(case.cluster, step, one, seconds, left.recovery, tokens),
    )  # fmt: skip


def _joules(
    cluster: Cluster, step: Step, one: float, seconds: float, recovery: float, tokens: float
) -> float | None:  # fmt: skip
    """Of a token: steps at their power, waiting for data and for recovery at that of an idle accelerator."""
    idle = [power_w(group.chip, 0, 0, 0) for group in cluster.groups]
    if step.power_w is None or any(each is None for each in idle):
        return None
    waiting = sum((w or 0.0) * group.count for w, group in zip(idle, cluster.groups, strict=True))
    busy = step.power_w * cluster.count * step.seconds + waiting * (one - step.seconds)
    return seconds * (busy / one * (1 - recovery) + waiting * recovery) / tokens


@dataclass(frozen=True)
class Ladder:
    """All rungs of a case; None where nothing fits.

    Attributes:
        cumulative: nothing, then one intervention more in the order of INTERVENTIONS, to all.
        without: everything but one. alone: one and nothing else.
    """

    case: Case
    cumulative: tuple[Rung | None, ...]
    without: dict[str, Rung | None]
    alone: dict[str, Rung | None]

    @property
    def first(self) -> Rung | None:
        return self.cumulative[0]

    @property
    def last(self) -> Rung | None:
        return self.cumulative[-1]


def climb(case: Case) -> Ladder:
    """The ladder of a case.

    Raises:
        PlanError: no layout is legal.
        HardwareError: a peak or a memory that is not known.
    """
    known: dict[frozenset[str], Rung | None] = {}

    def at(on: frozenset[str]) -> Rung | None:
        if on not in known:
            known[on] = rung(case, on)
        return known[on]

    return Ladder(
        case,
        tuple(at(frozenset(INTERVENTIONS[:number])) for number in range(len(INTERVENTIONS) + 1)),
        {name: at(EVERYTHING - {name}) for name in INTERVENTIONS},
        {name: at(frozenset({name})) for name in INTERVENTIONS},
    )


def start_dtype(cluster: Cluster, wanted: str | None = None) -> str | None:
    """The 32-bit products that a run without mixed precision has: tf32 where every chip has a peak of it, else fp32.

    None where neither is known: mixed precision is then on in every rung.

    Raises:
        HardwareError: a wanted one whose peak is not known.
    """
    if wanted is not None:
        for group in cluster.groups:
            group.chip.peak(wanted)
        return wanted
    for kind in ("tf32", "fp32"):
        if all(kind in group.chip.peaks for group in cluster.groups):
            return kind
    return None
