"""The ladder as Markdown and JSON: one case's tables, and the page of cases that answers the paper's four claims."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy

from elasmo.simulate.accelerator import accelerator
from elasmo.simulate.cluster import parse_cluster
from elasmo.simulate.deployment import Deployment
from elasmo.simulate.fleet import Fleet
from elasmo.simulate.ladder import EVERYTHING, INTERVENTIONS, Case, Ladder, Rung, climb, rung, start_dtype
from elasmo.simulate.load import poisson
from elasmo.simulate.named import named_model
from elasmo.simulate.pool_planner import Replicas
from elasmo.simulate.samples import Samples
from elasmo.simulate.served_model import model_named
from elasmo.simulate.serving_report import Objective, compare

MFU, COST, ENERGY, LATENCY = 0.61, 0.63, 3.8, 0.45
"""What the paper claims of all interventions together: MFU, the fall of $/token, the rise of tokens/J; and of prefill
and decode pools the fall of the median latency of a token."""
NEAR = 0.10
"""A claim is reproduced where the simulated figure is within this of it, relatively."""


def verdict(simulated: float | None, claimed: float) -> str:
    """`reproduced`, `exceeded`, or `contradicted`, which is less than claimed."""
    if simulated is None:
        return "unknown"
    if abs(simulated / claimed - 1) <= NEAR:
        return "reproduced"
    return "exceeded" if simulated > claimed else "contradicted"


@dataclass(frozen=True)
class Claims:
    """The three claims on training, of a run with everything beside the same run with nothing."""

    mfu: float
    cost: float | None
    energy: float | None


def claims(first: Rung, last: Rung) -> Claims:
    cost, energy = None, None
    if first.usd_per_mtoken is not None and last.usd_per_mtoken is not None:
        cost = 1 - last.usd_per_mtoken / first.usd_per_mtoken
    if first.joules_per_token is not None and last.joules_per_token is not None:
        energy = first.joules_per_token / last.joules_per_token
    return Claims(last.mfu, cost, energy)


def change(after: float | None, before: float | None) -> str:
    """Relative change, in per cent."""
    return "" if after is None or before is None else f"{after / before - 1:+.1%}"


def _money(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def title(case: Case) -> str:
    kind = f"{case.start or case.dtype} to {case.dtype}"
    return (
        f"{case.model.name or 'model'} on {case.cluster}, {case.global_batch} sequences of {case.seq} tokens, {kind}; "
        f"{samples_text(case)}"
    )


def short(case: Case) -> str:
    return f"{case.model.name} on {case.cluster}"


def samples_text(case: Case) -> str:
    if case.samples is None:
        return "one stream of tokens"
    own = case.samples
    return (
        f"samples of {own.mean:g} tokens (spread {own.spread:g}, of media {own.media_spread:g}): "
        f"{case.full(False):.0%} full padded, {case.full(True):.1%} packed"
    )


def ladder_lines(made: Ladder) -> list[str]:
    """Tables of a case: cumulative, then alone and left out."""
    lines = [
        "| cumulative | MFU | ΔMFU | $/Mtoken | Δ | J/token | Δ | goodput | layout |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    before: Rung | None = None
    for name, each in zip(("nothing", *(f"+ {name}" for name in INTERVENTIONS)), made.cumulative, strict=True):
        lines.append(_cumulative(name, each, before))
        before = each
    lines += [
        "",
        "| intervention | alone: ΔMFU | Δ$/Mtoken | ΔJ/token | left out: ΔMFU | Δ$/Mtoken | ΔJ/token |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in INTERVENTIONS:
        cells = _against(made.alone[name], made.first) + _against(made.without[name], made.last)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _cumulative(name: str, each: Rung | None, before: Rung | None) -> str:
    if each is None:
        return f"| {name} | does not fit | | | | | | | |"
    points = "" if before is None else f"{100 * (each.mfu - before.mfu):+.1f}"
    cost = "" if before is None else change(each.usd_per_mtoken, before.usd_per_mtoken)
    energy = "" if before is None else change(each.joules_per_token, before.joules_per_token)
    return (
        f"| {name} | {each.mfu:.1%} | {points} | {_money(each.usd_per_mtoken)} | {cost} | "
        f"{_money(each.joules_per_token)} | {energy} | {each.goodput:.1%} | {each.step.plan} |"
    )


def _against(each: Rung | None, base: Rung | None) -> list[str]:
    if each is None:
        return ["does not fit", "", ""]
    if base is None:
        return [f"{each.mfu:.1%} (nothing else fits)", "", ""]
    return [
        f"{100 * (each.mfu - base.mfu):+.1f}", change(each.usd_per_mtoken, base.usd_per_mtoken),
        change(each.joules_per_token, base.joules_per_token),
    ]  # fmt: skip


def rung_json(each: Rung | None) -> dict[str, Any] | None:
    if each is None:
        return None
    return {
        "on": [name for name in INTERVENTIONS if name in each.on], "layout": str(each.step.plan),
        "seconds": each.seconds, "mfu": each.mfu, "tokens_per_s": each.tokens_per_s, "useful": each.useful,
        "goodput": each.goodput, "usd_per_mtoken": each.usd_per_mtoken, "joules_per_token": each.joules_per_token,
        "breakdown_s": each.step.breakdown,
    }  # fmt: skip


def ladder_json(made: Ladder) -> dict[str, Any]:
    """A ladder as plain data."""
    return {
        "case": title(made.case), "simulated": True, "interventions": list(INTERVENTIONS),
        "cumulative": [rung_json(each) for each in made.cumulative],
        "without": {name: rung_json(each) for name, each in made.without.items()},
        "alone": {name: rung_json(each) for name, each in made.alone.items()},
    }  # fmt: skip


def make_case(
    model: str, on: str, seq: int, batch: int, samples: Samples | None = None, dtype: str = "bf16",
    start: str | None = None, fixed: tuple[tuple[str, int], ...] = (),
) -> Case:  # fmt: skip
    """A case from the words of a command line."""
    cluster = parse_cluster(on)
    return Case(named_model(model), cluster, seq, batch, dtype, start_dtype(cluster, start), samples, fixed=fixed)


LLAVA = Samples(900, 0.5, 0.25)
"""An assumption on LLaVA-1.5's fine-tuning mix: 576 tokens of a picture and some 300 of conversation. 40 of its 665
thousand samples have no picture (Liu et al. 2023, arXiv:2310.03744, table 7), which is a spread of 0.25 of the rest."""
SHOWN = (
    ("Llama-3-70B", "64xH100", 8192, 512, None),
    ("Llama-3-70B", "2048xH100", 8192, 2048, None),
    ("llava-7b", "8xA100", 2048, 128, LLAVA),
    ("llava-7b", "256xA100", 2048, 2048, LLAVA),
)
VARIANTS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("70B A100", ("Llama-3-70B", "64xA100", 8192, 512)),
    ("70B H100 from fp32", ("Llama-3-70B", "64xH100", 8192, 512, None, "bf16", "fp32")),
    ("70B H100 from bf16", ("Llama-3-70B", "64xH100", 8192, 512, None, "bf16", "bf16")),
    ("70B H100 to fp8", ("Llama-3-70B", "64xH100", 8192, 512, None, "fp8")),
    ("70B B200", ("Llama-3-70B", "64xB200", 8192, 512)),
    ("70B H100 at 2,048 tokens a sequence", ("Llama-3-70B", "64xH100", 2048, 2048)),
    ("70B H100 on samples of 3,000 tokens", ("Llama-3-70B", "64xH100", 8192, 512, Samples(3000, 0.7))),
    ("7B H100", ("Llama-2-7B", "8xH100", 4096, 128)),
    ("7B A100 from fp32", ("Llama-2-7B", "8xA100", 4096, 128, None, "bf16", "fp32")),
    ("LLaVA H100", ("llava-7b", "8xH100", 2048, 128, LLAVA)),
    ("LLaVA A100 from bf16", ("llava-7b", "8xA100", 2048, 128, LLAVA, "bf16", "bf16")),
)
LOADS = (2.0, 4.0, 6.0, 7.0, 8.0)
"""Requests a second that the claim on latency is asked at."""


def ends(case: Case) -> tuple[Rung | None, Rung | None]:
    """Nothing, and everything."""
    return rung(case, frozenset()), rung(case, EVERYTHING)


def pools() -> list[tuple[float, float, float]]:
    """Of Llama 3.1 70B on 16 H100 with prompts of 4,000 and answers of 200 tokens: requests a second, the change of the
    median time of a later token by pools of their own, and the share within 2 s and 50 ms without them."""
    cut = Deployment(model_named("Llama-3.1-70B").model, accelerator("H100"), tp=4, step_tokens=8192)
    found = []
    for rate in LOADS:
        made = compare(Fleet(cut, Replicas(0, 4)), poisson(rate, 1000, 4000, 200), Objective(2.0, 0.05))
        found.append((rate, made.changes["TPOT median"], made.together.attainment))
    return found


def claim_rows(rows: Sequence[tuple[str, Rung | None, Rung | None]]) -> tuple[list[str], list[str]]:
    """Of each case a row, and of each claim a line that says where it is reproduced, exceeded or contradicted."""
    table: list[str] = []
    where: dict[str, dict[str, list[str]]] = {
        f"MFU {MFU:.0%}": {},
        f"cost -{COST:.0%}": {},
        f"{ENERGY:g}x tokens/J": {},
    }
    for name, first, last in rows:
        if first is None or last is None:
            table.append(f"| {name} | nothing fits {'without' if first is None else 'with'} them | | | | | |")
            continue
        own = claims(first, last)
        said = verdict(own.mfu, MFU), verdict(own.cost, COST), verdict(own.energy, ENERGY)
        cost = "unknown" if own.cost is None else f"{-own.cost:+.0%}"
        energy = "unknown" if own.energy is None else f"{own.energy:.2f}x"
        table.append(f"| {name} | {own.mfu:.1%} | {said[0]} | {cost} | {said[1]} | {energy} | {said[2]} |")
        for claim, word in zip(where, said, strict=True):
            where[claim].setdefault(word, []).append(name)
    lines = [
        line
        for claim, found in where.items()
        for line in (f"- **{claim}**", *(f"  - {word}: {'; '.join(names)}" for word, names in sorted(found.items())))
    ]
    return table, lines


def page(
    shown: Sequence[tuple[Any, ...]] = SHOWN, variants: Sequence[tuple[str, tuple[Any, ...]]] = VARIANTS,
    latency: Sequence[tuple[float, float, float]] | None = None,
) -> str:  # fmt: skip
    """benchmarks/ladder.md."""
    climbed = [climb(make_case(*each)) for each in shown]
    rows = [(short(made.case), made.first, made.last) for made in climbed]
    rows += [(name, *ends(make_case(*words))) for name, words in variants]
    table, said = claim_rows(rows)
    lines = [
        "# The eight interventions, simulated",
        "",
        f"Written by `elasmo simulate ladder --out benchmarks/ladder.md` ({date.today().isoformat()}, Python "
        f"{platform.python_version()}, numpy {numpy.__version__}).",
        "Every number is simulated by the model of [docs/simulate.md](../docs/simulate.md), whose distance from",
        "published runs is in [accuracy.md](accuracy.md); none is measured.",
        "",
        "A rung is the cheapest layout that fits with what is switched on, so layouts differ between rungs. MFU is of",
        "useful tokens and over the peak of the last rung's dtype, also where products are tf32, so that they compare;",
        "$ and J are of a million and of one useful token, with stalls, failures and recovery. `Δ` of a cumulative row",
        "is against the row above, `alone` against nothing, `left out` against everything; ΔMFU in points. What is",
        "assumed (lengths of samples, media that a host decodes, failures) is stated with a case or a default of the",
        "command. A faster layout may take more energy: rungs are chosen by price.",
        "",
        "## The paper's claims",
        f"All interventions together: MFU {MFU:.0%}, cost -{COST:.0%}, {ENERGY:g} times the tokens a joule. Reproduced "
        f"means within {NEAR:.0%} of the claim,",
        "contradicted means less. The first rows are the cases below; the others change one thing.",
        "",
        "| case | MFU | 61 % | cost | -63 % | tokens/J | 3.8x |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [*table, "", *said]
    lines += [
        "",
        f"**Median latency of a token, -{LATENCY:.0%} by prefill and decode pools**: Llama 3.1 70B on 16 H100, tp 4,",
        "prompts of 4,000 and answers of 200 tokens in the mean, the best split against one pool (more loads in",
        "[pools.md](pools.md)).",
        "",
        "| requests/s | median TPOT | -45 % | one pool within TTFT 2 s, TPOT 50 ms |",
        "|---|---|---|---|",
    ]
    for rate, tpot, met in pools() if latency is None else latency:
        lines.append(f"| {rate:g} | {tpot:+.0%} | {verdict(max(-tpot, 0.0), LATENCY)} | {met:.0%} |")
    for made in climbed:
        lines += ["", f"## {title(made.case)}", *ladder_lines(made)]
    return "\n".join([*lines, ""])
