"""A row of a published table read as model, plan and cluster; what it leaves blank is chosen as its owner would have.

Blank means unknown. A column that decides nothing physical (names, sources, their own rates) is not read, except for
the date in a source: one older than fused attention cannot have used it. Notes may state an overlap or slices. A column
`attention`, which anybody can fill in, or the notes say which kernels computed attention; blank, the layout tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product

from elasmo.simulate.accelerator import Accelerator, HardwareError, accelerator, dtype_name
from elasmo.simulate.calibration import Calibration
from elasmo.simulate.cluster import Cluster, group
from elasmo.simulate.describe import from_shape
from elasmo.simulate.model import Model
from elasmo.simulate.plan import Plan, PlanError, refusals
from elasmo.simulate.published import optional_number, whole_number
from elasmo.simulate.training import Step, fits, simulate_step

FUSED_ATTENTION = (2022, 12)
"""Month after which a source is taken to have fused attention: half a year after Dao et al., arXiv:2205.14135."""
KERNELS = (
    (3, re.compile(r"transformer.?engine|cudnn|flash.?attention.?(?:v|version)? ?3|\bfa3\b|splash", re.IGNORECASE)),
    (2, re.compile(r"flash.?attention.?(?:v|version)? ?2|\bfa2\b|sdpa|scaled_dot_product", re.IGNORECASE)),
    (1, re.compile(r"flash.?attention.?(?:v|version)? ?1|\bfa1\b|triton", re.IGNORECASE)),
)
"""Versions of fused attention by the words of a row's column `attention` or of its notes, from the kernels' own
documentation: Transformer Engine calls cuDNN's; torch's scaled_dot_product_attention is FlashAttention 2."""
RAN = 1.1
"""A published row ran: what is left open may need this much more than the memory, by this model's own error."""
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


class RowError(ValueError):
    """A row that contradicts itself or says too little, with the columns at fault."""


@dataclass(frozen=True)
class Reading:
    """What a row describes.

    Attributes:
        plans: the row's plan, or, where it leaves things open, those that it allows.
    """

    model: Model
    cluster: Cluster
    plans: tuple[Plan, ...]


def read_row(row: Mapping[str, str], own: Iterable[Accelerator] = ()) -> Reading:
    """Reads a row with the columns of the published training tables.

    Raises:
        RowError, PlanError, HardwareError, ModelError: why the row cannot be.
    """

    def whole(key: str) -> int | None:
        return whole_number(row, key)

    notes = row.get("notes", "")
    model = from_shape(row)
    chip = accelerator(row.get("hw", ""), own)
    kind = dtype_name(row.get("precision") or "bf16")
    chip.peak(kind)
    count, seq = whole("n_gpu"), whole("seq_len")
    if not count or not seq:
        raise RowError(f"{'n_gpu' if not count else 'seq_len'} is blank; a step cannot be predicted without.")
    tp, pp, cp, ep = (whole(key) or 1 for key in ("tp", "pp", "cp", "ep"))
    if count % (tp * pp * cp):
        raise RowError(f"n_gpu={count} is no multiple of tp={tp} x pp={pp} x cp={cp}; change one of them.")
    dp = count // (tp * pp * cp)
    stated = whole("dp")
    if stated and stated != dp and stated * tp * pp != count:
        raise RowError(f"dp={stated} contradicts n_gpu={count} / (tp={tp} x pp={pp} x cp={cp}) = {dp}.")
    gbs, mbs, accumulated = whole("gbs"), whole("mbs"), whole("grad_accum")
    if gbs and mbs and gbs % (mbs * dp) and not model.has_experts:
        raise RowError(f"gbs={gbs} is no multiple of mbs={mbs} x dp={dp}.")
    per_rank = bool(mbs and pp > 1 and (gbs or mbs * dp) == mbs * dp and not accumulated)
    if gbs is None:
        gbs = (mbs or 1) * dp * (accumulated or (1 if mbs else max(1, 4 * pp)))
    if gbs < dp:
        raise RowError(f"gbs={gbs} is less than dp={dp}: some ranks would have no sequence.")
    cluster = _cluster(chip, count, notes)
    old = _date(row.get("source_ref", "")) < FUSED_ATTENTION
    zero = row.get("zero", "").strip()[:1]
    stage = int(zero) if zero.isdigit() else (0 if old or dp * cp == 1 else 1)
    tpu = chip.generation == "tpu"
    sequence = row.get("seq_parallel", "").strip().lower()
    base = Plan(
        seq=seq, global_batch=gbs, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, zero=stage,
        sequence_parallel=tp > 1 and (sequence in ("1", "true", "yes") if sequence else not old),
        dtype=kind, context="ulysses" if "ulysses" in notes.lower() else "ring",
        fused_attention=not old, dropout=old,
        attention_version=3 if tpu else _kernels(row, stage),
        compiled=not ("eager" in notes.lower() or ("FSDP" in notes and "compile" not in notes.lower() and not tpu)),
        overlap_tp="async" in notes.lower() or tpu or (not old and stage < 3), overlap_dp=not old,
        # Blank: pipelines hide an exchange that leaves the scale-up domain behind another micro-batch (DualPipe).
        overlap_ep="overlap on" in notes.lower() or (pp > 1 and ep > chip.scaleup_domain and not old),
        hybrid=bool(re.search("in slice|hybrid", row.get("zero", "").lower())),
        gradient_bytes=2.0 if tpu or (old and kind == "fp16") else 4.0,
    )  # fmt: skip
    micro = [mbs] if mbs and not per_rank else [size for size in (1, 2, 4, 8, 16) if gbs % (dp * size) == 0] or [1]
    if per_rank:
        micro = [1]
    keeps = _kept(row.get("recompute", ""), stage)
    chunks = _chunks(row.get("vp", ""), notes.lower(), model, pp)
    plans = []
    for size, keep, parts in product(micro, keeps, chunks):
        schedule = "interleaved" if parts > 1 else "1f1b"
        plan = base.having(micro_batch=size, recompute=keep, chunks=parts, schedule=schedule)
        if parts > 1 and plan.micro_batches % pp:
            continue
        plans.append(plan)
    legal = [plan for plan in plans if not refusals(plan, model, count)]
    if not legal:
        reasons = refusals((plans or [base])[0], model, count) or ["no micro-batch suits the row's schedule"]
        raise PlanError("; ".join(reasons) + ".")
    return Reading(model, cluster, tuple(legal))


def predict_row(
    row: Mapping[str, str], calibration: Calibration | None = None, own: Iterable[Accelerator] = ()
) -> Step:  # fmt: skip
    """The step of a row: of the plans that it allows, the fastest that fits, as its owner would have tuned it.

    Raises:
        RowError, PlanError, HardwareError, ModelError: why it cannot be.
    """
    reading = read_row(row, own)
    steps = [simulate_step(reading.model, plan, reading.cluster, calibration) for plan in reading.plans]
    chip = reading.cluster.groups[0].chip
    if chip.memory_bytes is not None:
        steps = [step for step in steps if fits(step.memory, chip, RAN)] or [
            min(steps, key=lambda step: step.memory.total)
        ]
    return min(steps, key=lambda step: step.seconds)


def measured_seconds(row: Mapping[str, str]) -> float | None:
    """A row's measured seconds a step, from tokens/s, from the time, or from its own FLOP convention; None without."""
    number = {key: optional_number(row.get(key)) for key in row}
    count, seq, gbs = (number.get(key) or 0.0 for key in ("n_gpu", "seq_len", "gbs"))
    tokens = seq * (gbs or (number.get("mbs") or 0) * (number.get("dp") or 0))
    if number.get("tokens_per_s_gpu") and tokens:
        return tokens / ((number["tokens_per_s_gpu"] or 1) * count)
    if number.get("iter_time_s"):
        return number["iter_time_s"]
    if number.get("tokens_per_s") and tokens:
        return tokens / (number["tokens_per_s"] or 1)
    rate = number.get("tflops_per_gpu")
    if not rate or not tokens:
        return None
    layers, hidden, vocab = (number.get(key) or 0.0 for key in ("layers", "hidden", "vocab"))
    kind = row.get("tflops_kind", "")
    if kind.startswith("hardware"):
        # Narayanan et al. 2021, equation 3: products and attention, full recompute included.
        work = 96 * tokens * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (16 * layers * hidden))
        return work / (count * rate * 1e12)
    if kind.startswith("model"):
        # As MaxText counted before July 2025: 6 for each weight, attention without a mask.
        model = from_shape(row)
        weights = model.decoder_parameters - model.hidden * model.vocab * (0 if model.tied else 1)
        scores = sum(
            6 * layer.attention.heads * (layer.attention.head_dim + layer.attention.value_dim) for layer in model.layers
        )
        return tokens * (6 * weights + scores * seq) / (count * rate * 1e12)
    return None


def _cluster(chip: Accelerator, count: int, notes: str) -> Cluster:
    """`2 slice(s) x 64 chips` in the notes: tori of 64 chips that a data-centre network joins."""
    made = group(chip, count)
    found = re.search(r"(\d+) slice\(s\) x (\d+) chips", notes)
    if found is not None:
        made = replace(made, up=replace(made.up, domain=int(found[2])))
    return Cluster((made,))


def _date(source: str) -> tuple[int, int]:
    """Year and month of a source from its arXiv number or a month in its name; far away where neither is there."""
    dates = [(2000 + int(year), int(month)) for year, month in re.findall(r"arXiv:(\d\d)(\d\d)\.\d{4,5}", source)]
    for name, year in re.findall(r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*_?(20\d\d)", source.lower()):
        dates.append((int(year), MONTHS.index(name) + 1))
    return min(dates, default=(9999, 1))


def _kernels(row: Mapping[str, str], zero: int) -> int:
    """Version of the attention kernels: what a row says, else what was there for its date and its kind of layout.

    Fully sharded runs are torch's, whose own attention is version 2; runs that cut tensors, pipelines or optimizer
    states call the vendor's kernels. Before version 2 (arXiv:2307.08691) there was only the first.
    """
    for version, kernels in KERNELS:
        if kernels.search(f"{row.get('attention', '')} {row.get('notes', '')}"):
            return version
    return 1 if _date(row.get("source_ref", "")) < (2023, 7) else 2 if zero >= 3 else 3


def _kept(text: str, zero: int) -> list[frozenset[str]]:
    """What a row's `recompute` means; blank: nothing, or the least that fits."""
    said = re.sub(r"\(.*?\)", "", text).strip().lower()
    selective = frozenset({"half"}) if zero >= 3 else frozenset({"attention"})
    if said in ("", "unknown", "nan"):
        cheap = frozenset({"attention", "experts_activation", "pointwise"})
        return [frozenset(), selective, cheap, cheap | {"latents"}, frozenset({"full"})]
    if said in ("none", "no", "0", "false"):
        return [frozenset()]
    if said.startswith("full"):
        return [frozenset({"full"})]
    if "sac" in said:
        return [frozenset({"half"})]
    if said.startswith("selective"):
        return [selective]
    words = {
        "core_attn": "attention", "mla_up_proj": "latents", "mlp": "feed_forward", "moe": "experts",
        "moe_act": "experts_activation", "layernorm": "pointwise", "minimal": "pointwise", "attention": "attention",
    }  # fmt: skip
    parts = {words[word] for word in re.split(r"[+,; ]+", said) if word in words}
    if said.startswith("minimal"):
        parts |= {"attention", "pointwise"}
    if said.startswith("qkv_proj"):
        parts |= {"attention", "pointwise", "feed_forward"}
    if not parts:
        raise RowError(
            f"recompute={text} is not known; use none, selective, full, or parts as core_attn, mlp, moe, layernorm."
        )
    return [frozenset(parts)]


def _chunks(text: str, notes: str, model: Model, pp: int) -> list[int]:
    """Model chunks a pipeline rank; blank: what the notes' schedule says, else one, or as many as help."""
    if pp == 1:
        return [1]
    number = optional_number(text)
    if number is not None and number >= 1:
        return [int(number)]
    most = max(1, model.depth // pp)
    # Uneven cuts give the first and the last chunk a layer less, in whose place embedding and loss stand.
    even = [size for size in range(1, most + 1) if -model.depth % (pp * size) <= max(2, model.depth // 16)]
    even = even if 1 in even else [1, *even]
    if re.search(r"\b1f1b|gpipe", notes) and "interleaved" not in notes:
        return [1]
    if text.strip().startswith(">1") or "interleaved" in notes:
        return [size for size in even if size > 1] or [2]
    return even


__all__ = ["HardwareError", "Reading", "RowError", "measured_seconds", "predict_row", "read_row"]
