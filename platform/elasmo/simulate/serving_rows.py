"""Published rows of serving as cases: what was deployed, which steps it made, and what was measured.

Columns are those of the tables S02, S05 and S07. A blank is unknown; a row that cannot be is refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from elasmo.simulate.accelerator import accelerator
from elasmo.simulate.deployment import Deployment, DeploymentError, precision
from elasmo.simulate.engine_kind import engine_kind
from elasmo.simulate.published import optional_number, read_table, scored
from elasmo.simulate.served_model import served_model
from elasmo.simulate.serving_constants import ServingConstants
from elasmo.simulate.serving_step import Batch, Work, work
from elasmo.simulate.steady_state import Workload, sequences_that_fit, static_batch, steps_of

Row = Mapping[str, str]
STATIC_SHARE = 0.97
"""Of device memory for weights and cache, by an engine that plans its buffers for one batch."""
MOST_SEQUENCES = 2048
PROMPT_TOKENS, OUTPUT_TOKENS = 250.0, 500.0
"""Of a request where neither the row nor its task says."""
MEDIA_TOKENS = 800.0
"""Of a medium where the model's own is not known."""
QUANTITIES = {
    "median_itl_ms": "median ITL", "output_throughput_tokens_per_sec": "throughput", "avg_power_watts": "power",
    "energy_per_token_joules": "energy per token", "output_tok_s": "throughput", "ttft_ms": "TTFT",
    "tpot_ms": "TPOT", "prefill_ms": "prefill step (TTFT)", "decode_ms": "decode step (TPOT)",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One measured thing and its steps.

    Attributes:
        source, model, hw, sweep: who measured, what, on what; points of one sweep differ in batch only.
        steps: work [n]; weights: the share of each step in the mean, or of a static batch [1, decode steps].
        style: `steady`, `static` or `single`.
        measured: by column, in the column's unit.
    """

    source: str
    model: str
    hw: str
    sweep: str
    deployment: Deployment
    steps: Work
    weights: np.ndarray
    sequences: float
    style: str
    measured: dict[str, float]


def number(row: Row, *names: str) -> float | None:
    """The first of some columns that is not blank."""
    for name in names:
        value = optional_number(row.get(name))
        if value is not None:
            return value
    return None


def deployment_of(row: Row) -> Deployment:
    """What a row of S05 or S07 deployed.

    Raises:
        ValueError: an accelerator, format, engine or model that is not known, or degrees that contradict each other.
    """
    served = served_model(row.get("model", ""), number(row, "total_params_b"), number(row, "active_params_b"))
    count = int(number(row, "n_gpu") or 0)
    dp, pp = (int(number(row, name) or 1) for name in ("dp", "pp"))
    tp = int(number(row, "tp") or max(count // (dp * pp), 1))
    ep = int(number(row, "ep") or 1)
    if count and tp * dp * pp != count:
        if dp * pp > count or count % (dp * pp):
            raise DeploymentError(f"n_gpu={count} contradicts tp={tp} x dp={dp} x pp={pp}.")
        if tp != 1 or ep == 1:
            raise DeploymentError(f"n_gpu={count} contradicts tp={tp} x dp={dp} x pp={pp}; they must multiply to it.")
        tp = count // (dp * pp)  # experts spread over ranks that share the rest
    text = row.get("weight_precision") or row.get("precision") or "bf16"
    engine = row.get("engine") or "vLLM"
    stated = re.search(r"\bv\d+\.\d+", row.get("notes", "")) or re.search(r"\bv\d+\.\d+", row.get("source_ref", ""))
    kind = engine_kind(f"{engine} {stated[0]}" if stated else engine)
    wide = precision(text).dtype == "fp8"
    formats = precision(text, "fp8" if wide and kind in ("compiled", "runtime") else "")
    return Deployment(
        served.model, accelerator(row.get("hw", "")), kind, tp, pp, dp, ep > 1 and served.model.has_experts, formats
    )


def workload_of(row: Row, deployment: Deployment) -> Workload:
    """What a row of S07 asked for: its stated tokens, else those that its task usually has."""
    output = number(row, "avg_output_len", "output_tokens")
    media, prompt = 0.0, number(row, "avg_input_len", "input_tokens")
    task = next((each for each in read_table("S07w_task_workloads") if each["task"] == row.get("task")), None)
    if task is not None:
        media = float(task["media"])
        towers = deployment.model.towers
        each = float(towers[0].tokens) if towers else MEDIA_TOKENS
        prompt = float(task["text_tokens"]) + media * each if prompt is None else prompt
        output = output or float(task["output_tokens"])
    return Workload(PROMPT_TOKENS if prompt is None else prompt, output or OUTPUT_TOKENS, media)


def steady_case(row: Row, constants: ServingConstants) -> Case:
    """A row of S07; without `avg_batch_size`, as many requests run as were admitted and fit.

    Raises:
        ValueError: a row that is not known or cannot be.
    """
    deployment = deployment_of(row)
    load = workload_of(row, deployment)
    admitted, running = number(row, "max_num_seqs"), number(row, "avg_batch_size")
    fits = float(sequences_that_fit(deployment, load, constants))
    if running is None:
        if admitted is None:
            raise DeploymentError("max_num_seqs and avg_batch_size are blank; one of them is needed.")
        running = min(admitted, fits)
    steps = steps_of(deployment, load, running, constants.routing)
    names = ("median_itl_ms", "output_throughput_tokens_per_sec", "avg_power_watts", "energy_per_token_joules")
    measured = {name: value for name in names if (value := number(row, name))}
    sweep = "/".join(row.get(key, "") for key in ("task", "hw", "n_gpu", "ep", "model"))
    source = f"S07 {row.get('task', '')}"
    return Case(source, row["model"], deployment.chip.name, sweep, deployment, steps.work, steps.weights, running,
                "steady", measured)  # fmt: skip


def _loaded_case(row: Row, deployment: Deployment, prompt: float, output: float, constants: ServingConstants) -> Case:
    load = Workload(prompt, output, prompt_cv=0.0, output_cv=0.0)
    running = min(sequences_that_fit(deployment, load, constants), MOST_SEQUENCES)
    steps = steps_of(deployment, load, running, constants.routing)
    measured = {name: value for name in ("output_tok_s", "tpot_ms") if (value := number(row, name))}
    return Case("S05 TensorRT-LLM", row.get("model", ""), deployment.chip.name, "", deployment, steps.work,
                steps.weights, running, "steady", measured)  # fmt: skip


def static_case(row: Row, constants: ServingConstants) -> Case:
    """A row of S05: a batch that starts and ends together, or one prompt's first token.

    Raises:
        ValueError: a row that is not known or cannot be.
    """
    deployment = deployment_of(row)
    batch, prompt = number(row, "batch_or_concurrency"), number(row, "input_tokens")
    output = number(row, "output_tokens") or 1.0
    if not prompt:
        raise DeploymentError("input_tokens is blank; prompts decide both latency and throughput.")
    if not batch:  # the most that fit, as a benchmark of peak throughput has it
        return _loaded_case(row, deployment, prompt, output, constants)
    room = deployment.cache_tokens(STATIC_SHARE)
    if batch * (prompt + output) > room:
        raise DeploymentError(
            f"{batch:.0f} sequences of {prompt + output:.0f} tokens need {batch * (prompt + output):.0f} tokens of KV "
            f"cache, and {room} fit; lower the batch or raise tp."
        )
    done = static_batch(deployment, batch, prompt, output)
    names = ("output_tok_s", "ttft_ms", "tpot_ms")
    measured = {name: value for name in names if (value := number(row, name))}
    sweep = f"{row.get('hw')}/{row.get('model')}/{'ttft' if output <= 1 else 'tok'}"
    weights = np.array([1.0, max(output - 1.0, 0.0)])
    return Case("S05 TensorRT-LLM", row["model"], deployment.chip.name, sweep, deployment, done, weights, batch,
                "static", measured)  # fmt: skip


PREFILL_POINTS = (128, 256, 512, 1024, 2048)
DECODE_POINTS = {
    "decoding_smallbs": ((1, 256), (1, 1024), (16, 512), (64, 256), (64, 1024)),
    "decoding_largebs": ((128, 256), (128, 512), (192, 256), (192, 512)),
}
"""Where the published fits are read: batch and context, inside the range that was profiled and the KV cache."""


def single_cases() -> list[Case]:
    """The points of S02: one step each."""
    capacity = {
        (row["model"], row["tp"]): float(row["max_num_tokens"])
        for row in read_table("S02b_distserve_kv_capacity_a100")
        if row["pp"] == "1"
    }
    cases = []
    for row in read_table("S02_distserve_profile_fits_a100_opt"):
        if not scored(row):
            continue
        a, b, c = (float(row[key]) for key in ("a_ms", "b_ms", "c_ms"))
        tp, prefill = int(row["tp"]), row["kind"] == "prefill"
        kind = engine_kind(f"{row['engine']} 0.2")  # both engines as of the artifact of OSDI 2024
        deployment = Deployment(served_model(row["model"]).model, accelerator(row["hw"]), kind, tp)
        points = [(1, length) for length in PREFILL_POINTS] if prefill else DECODE_POINTS[row["kind"]]
        for batch, length in points:
            if batch * length > capacity[row["model"], row["tp"]]:
                continue
            if prefill:
                steps, taken = Batch(0.0, 0.0, length, length / 2, 1.0), a + b * length + c * length**2
            else:
                steps, taken = Batch(batch, length, 0.0, 0.0, batch), a + b * batch * length + c * batch
            name = "prefill_ms" if prefill else "decode_ms"
            sweep = f"{row['engine']}/{row['model']}/{tp}/{row['kind']}/{1 if prefill else batch}"
            cases.append(Case(f"S02 {row['engine']}", row["model"], deployment.chip.name, sweep, deployment,
                              work(deployment, steps), np.ones(1), batch, "single", {name: taken}))  # fmt: skip
    return cases


def published_cases(constants: ServingConstants) -> list[Case]:
    """All scored rows of S02, S05 and S07."""
    cases = single_cases()
    cases += [static_case(row, constants) for row in read_table("S05_tensorrt_llm_throughput_ttft") if scored(row)]
    cases += [steady_case(row, constants) for row in read_table("S07_mlenergy_llm_mllm_h100_b200") if scored(row)]
    return cases
