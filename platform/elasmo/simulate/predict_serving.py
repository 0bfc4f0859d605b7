"""Fills predictions into rows with the columns of the published serving tables; an impossible row gets a reason."""

from __future__ import annotations

import math
from collections.abc import Mapping

from elasmo.simulate.accelerator import GIB
from elasmo.simulate.served_model import served_model
from elasmo.simulate.serving_constants import ServingConstants, default_constants
from elasmo.simulate.serving_panel import Panel
from elasmo.simulate.serving_rows import Case, number, static_case, steady_case, workload_of
from elasmo.simulate.serving_step import Batch, power_w, seconds, work

COLUMNS = (
    "predicted_ttft_ms", "predicted_tpot_ms", "predicted_median_itl_ms", "predicted_p90_itl_ms", "predicted_p99_itl_ms",
    "predicted_tokens_per_s", "predicted_tokens_per_s_gpu", "predicted_mem_gb", "predicted_kv_tokens",
    "predicted_power_w", "predicted_j_per_token", "predicted_j_per_request", "predicted_batch", "predicted_from",
    "reason",
)  # fmt: skip
"""What a prediction adds. Tokens are output tokens of the replica, power is of its accelerators, memory GiB each."""
OURS = frozenset({"max_num_seqs", "avg_batch_size", "batch_or_concurrency", "median_itl_ms", "ttft_ms"})
"""Columns that tell a serving row from a training one."""


def is_serving(row: Mapping[str, str]) -> bool:
    """Whether a row has a column that only serving tables have."""
    return bool(OURS & set(row))


def predict_serving(row: Mapping[str, str], constants: ServingConstants | None = None) -> dict[str, str]:
    """The columns that a prediction adds; all blank but `reason` where the row cannot be."""
    blank = dict.fromkeys(COLUMNS, "")
    found = constants or default_constants()
    try:
        filled, note = predicted(row, found)
    except ValueError as error:
        return {**blank, "reason": str(error)}
    shown = {name: f"{value:.5g}" for name, value in filled.items() if math.isfinite(value)}
    return {**blank, **shown, "predicted_from": note}


def predicted(row: Mapping[str, str], constants: ServingConstants) -> tuple[dict[str, float], str]:
    """The numbers of a row, and how well its model is known.

    Raises:
        ValueError: a row that is not known or cannot be, in a sentence.
    """
    served = served_model(row.get("model", ""), number(row, "total_params_b"), number(row, "active_params_b"))
    static = "batch_or_concurrency" in row
    case = static_case(row, constants) if static else steady_case(row, constants)
    made = {name: float(values[0]) for name, values in Panel([case]).columns(constants).items()}
    cut = case.deployment
    output = number(row, "output_tokens", "avg_output_len") or 1.0
    held = cut.cache_tokens(constants.cache_share) if case.style == "steady" else 0
    found = {"predicted_mem_gb": _memory_gb(case, row, constants), "predicted_batch": case.sequences}
    if held:
        found["predicted_kv_tokens"] = float(held)
    if case.style == "static":
        found |= _static(case, made, output, constants)
    else:
        rate = made["output_throughput_tokens_per_sec"]
        found |= {
            "predicted_tpot_ms": made["tpot_ms"], "predicted_median_itl_ms": made["median_itl_ms"],
            "predicted_p90_itl_ms": made["p90_itl_ms"], "predicted_p99_itl_ms": made["p99_itl_ms"],
            "predicted_tokens_per_s": rate, "predicted_power_w": made.get("avg_power_watts", math.nan),
            "predicted_j_per_token": made.get("energy_per_token_joules", math.nan),
            "predicted_ttft_ms": _first_token_ms(case, row, made["tpot_ms"], constants),
        }  # fmt: skip
    if "predicted_tokens_per_s" in found:
        found["predicted_tokens_per_s_gpu"] = found["predicted_tokens_per_s"] / cut.accelerators
    if "predicted_j_per_token" in found:
        found["predicted_j_per_request"] = found["predicted_j_per_token"] * output
    return found, _basis(served.note, row, static)


def _basis(note: str, row: Mapping[str, str], static: bool) -> str:
    """Where the model's shape is from, and what of the workload the row left to be assumed."""
    named = (("prompt", ("avg_input_len", "input_tokens")), ("output", ("avg_output_len", "output_tokens")))
    assumed = [what for what, columns in named if not static and number(row, *columns) is None]
    return f"model: {note}" + (f"; assumed lengths: {', '.join(assumed)}" if assumed else "")


def _static(case: Case, made: dict[str, float], output: float, constants: ServingConstants) -> dict[str, float]:
    found = {"predicted_ttft_ms": made["ttft_ms"]}
    steps = float(case.weights[1])
    whole = made["ttft_ms"] / 1e3 + (steps * made["tpot_ms"] / 1e3 if steps else 0.0)
    if steps:
        found |= {"predicted_tpot_ms": made["tpot_ms"], "predicted_median_itl_ms": made["tpot_ms"],
                  "predicted_tokens_per_s": made["output_tok_s"]}  # fmt: skip
    if case.deployment.chip.power_w is not None:
        done, weights = case.steps, case.weights
        watts = power_w(
            float(done.compute_s @ weights), float(done.memory_s @ weights), whole, case.deployment.chip, constants
        ) * case.deployment.accelerators  # fmt: skip
        found |= {"predicted_power_w": watts, "predicted_j_per_token": watts * whole / (case.sequences * output)}
    return found


def _first_token_ms(case: Case, row: Mapping[str, str], mean_ms: float, constants: ServingConstants) -> float:
    """Half a step until the scheduler sees a prompt, and the steps that take it along with what decodes."""
    if "batch_or_concurrency" in row:
        prompt, media, context = number(row, "input_tokens") or 1.0, 0.0, 0.0
    else:
        load = workload_of(row, case.deployment)
        prompt, media, context = load.prompt_tokens, load.media, load.context
    parts = math.ceil(prompt / case.deployment.step_tokens)
    batch = Batch(case.sequences, context, prompt / parts, prompt / 2, case.sequences, media / parts)
    done = work(case.deployment, batch, constants.routing)
    return mean_ms / 2 + parts * float(seconds(done, case.deployment, constants)[0]) * 1e3


def _memory_gb(case: Case, row: Mapping[str, str], constants: ServingConstants) -> float:
    """Weights and the keys and values of what runs, on one accelerator, in GiB."""
    cut = case.deployment
    if case.style == "static":
        length = (number(row, "input_tokens") or 0.0) + (number(row, "output_tokens") or 0.0)
    elif "batch_or_concurrency" in row:
        length = (number(row, "input_tokens") or 0.0) + (number(row, "output_tokens") or 0.0) / 2
    else:
        length = workload_of(row, cut).context
    held = case.sequences / cut.dp * cut.cache_bytes(length)
    return min((cut.weight_bytes + held) / GIB, cut.chip.memory * max(constants.cache_share, 0.97) / GIB)
