"""Requests that arrive at a fleet: replayed traces, Poisson arrivals, bursts. The same seed makes the same load."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np

BLOCK_TOKENS = 512
"""Tokens of a prefix block of the Mooncake traces."""


class LoadError(ValueError):
    """A load that cannot be read or made, in a sentence that says what would do."""


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        blocks: ids of its prompt's blocks of BLOCK_TOKENS tokens; equal ids mean equal prefixes. Empty: not known.
        media: that are encoded before its prompt, whose tokens are in it.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    media: float = 0.0


def poisson(
    rate: float,
    count: int,
    prompt: float,
    output: float,
    *,
    prompt_cv: float = 1.0,
    output_cv: float = 1.0,
    seed: int = 0,
) -> list[Request]:
    """`count` requests with exponential gaps of mean 1/rate seconds and gamma-distributed lengths."""
    draw = np.random.Generator(np.random.PCG64(seed))
    times = np.cumsum(draw.exponential(1.0 / _positive("rate", rate), count))
    return _requests(times, _lengths(draw, prompt, prompt_cv, count), _lengths(draw, output, output_cv, count))


def bursts(
    rate: float, count: int, prompt: float, output: float, *, size: int = 20, prompt_cv: float = 1.0,
    output_cv: float = 1.0, seed: int = 0,
) -> list[Request]:  # fmt: skip
    """As `poisson`, but requests arrive in bursts of `size` in the mean (geometric), all at once."""
    draw = np.random.Generator(np.random.PCG64(seed))
    times: list[float] = []
    now = 0.0
    while len(times) < count:
        now += draw.exponential(size / _positive("rate", rate))
        times += [now] * int(draw.geometric(1.0 / size))
    lengths = (_lengths(draw, prompt, prompt_cv, count), _lengths(draw, output, output_cv, count))
    return _requests(np.array(times[:count]), *lengths)


def _lengths(draw: np.random.Generator, mean: float, cv: float, count: int) -> np.ndarray:
    if cv <= 0:
        return np.full(count, max(1, round(mean)))
    drawn: np.ndarray = np.rint(draw.gamma(1 / cv**2, _positive("length", mean) * cv**2, count))
    whole: np.ndarray = np.maximum(1, drawn.astype(int))
    return whole


def _requests(times: np.ndarray, prompts: np.ndarray, outputs: np.ndarray) -> list[Request]:
    return [Request(float(t), int(p), int(o)) for t, p, o in zip(times, prompts, outputs, strict=True)]


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise LoadError(f"{name}={value:g} must be greater than 0.")
    return value


def read_azure(path: Path) -> list[Request]:
    """A trace of Azure's LLM services: columns TIMESTAMP, ContextTokens, GeneratedTokens.

    Raises:
        LoadError: a file without them.
    """
    found = []
    try:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                moment = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
                found.append(Request(moment, max(1, int(row["ContextTokens"])), max(1, int(row["GeneratedTokens"]))))
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise LoadError(
            f"{path} cannot be read as an Azure trace ({error}); it needs TIMESTAMP, ContextTokens, GeneratedTokens."
        ) from None
    return _from_zero(found)


def read_mooncake(path: Path) -> list[Request]:
    """A Mooncake trace: a JSON object a line with timestamp (ms), input_length, output_length, hash_ids.

    Raises:
        LoadError: a file without them.
    """
    found = []
    try:
        for line in path.read_text().splitlines():
            if line.strip():
                row = json.loads(line)
                found.append(
                    Request(row["timestamp"] / 1e3, max(1, int(row["input_length"])), max(1, int(row["output_length"])),
                            tuple(row.get("hash_ids", ())))
                )  # fmt: skip
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise LoadError(
            f"{path} cannot be read as a Mooncake trace ({error}); each line needs timestamp, input_length and "
            "output_length."
        ) from None
    return _from_zero(found)


def _from_zero(requests: Sequence[Request]) -> list[Request]:
    if not requests:
        raise LoadError("The trace has no requests.")
    ordered = sorted(requests, key=lambda each: each.arrival_s)
    return [replace(each, arrival_s=each.arrival_s - ordered[0].arrival_s) for each in ordered]


def scaled(requests: Sequence[Request], rate: float = 1.0, length: float = 1.0) -> list[Request]:
    """The same arrivals `rate` times as fast, with prompts and outputs `length` times as long."""
    return [
        Request(
            each.arrival_s / rate,
            max(1, round(each.prompt_tokens * length)),
            max(1, round(each.output_tokens * length)),
            each.blocks if length == 1.0 else (),
            each.media,
        )
        for each in requests
    ]


NUMBERS = ("rate", "count", "prompt", "output", "size", "prompt_cv", "output_cv", "media")


def parse_load(text: str, seed: int = 0) -> list[Request]:
    """`poisson:rate=4,count=2000,prompt=1000,output=200`, `bursts:...,size=20`, or a trace's path (.csv or .jsonl).

    A path may say `,rate=2` (twice as fast), `,length=0.5` and `,count=1000` (the first ones).

    Raises:
        LoadError: not of that form.
    """
    kind, _, rest = text.partition(":")
    if kind in ("poisson", "bursts"):
        given = _pairs(rest, NUMBERS)
        lacking = [name for name in ("rate", "prompt", "output") if name not in given]
        if lacking:
            raise LoadError(f"load={text} lacks {', '.join(lacking)}; such as {kind}:rate=4,prompt=1000,output=200.")
        count = int(given.pop("count", 1000))
        media = given.pop("media", 0.0)
        rate, prompt, output = (given.pop(name) for name in ("rate", "prompt", "output"))
        if kind == "poisson":
            if "size" in given:
                raise LoadError("size belongs to bursts; poisson has none.")
            made = poisson(rate, count, prompt, output, seed=seed, **given)
        else:
            made = bursts(rate, count, prompt, output, size=int(given.pop("size", 20)), seed=seed, **given)
        return [replace(each, media=media) for each in made] if media else made
    name, _, rest = text.partition(",")
    path, given = Path(name), _pairs(rest, ("rate", "length", "count"))
    if path.suffix not in (".csv", ".jsonl"):
        raise LoadError(f"load={text} is neither poisson:..., bursts:... nor the path of a .csv or .jsonl trace.")
    requests = read_azure(path) if path.suffix == ".csv" else read_mooncake(path)
    requests = requests[: int(given.get("count", len(requests)))]
    return scaled(requests, _positive("rate", given.get("rate", 1.0)), _positive("length", given.get("length", 1.0)))


def _pairs(text: str, names: Sequence[str]) -> dict[str, float]:
    found = {}
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*(\w+)=([-+.\deE]+)\s*", part)
        if match is None or match[1] not in names:
            raise LoadError(f"load: {part!r} is not one of {', '.join(names)} with a number, such as rate=4.")
        found[match[1]] = float(match[2])
    return found
