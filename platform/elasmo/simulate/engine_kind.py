"""Kinds of inference engines: what runs between kernels, and how attention and all-reduces are made.

Not products: a version of vLLM is one of these, as is anyone else's engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

EngineKind = Literal["graphed", "runtime", "compiled", "native", "eager"]
"""`graphed`: Python scheduler, decode steps replayed as CUDA graphs, flash decoding, one-shot all-reduces (vLLM from
0.3 on, SGLang). `runtime`: the same on the device under a C++ scheduler (TensorRT-LLM from 0.8 on). `compiled`:
ahead-of-time graphs under a C++ runtime of 2023 (TensorRT-LLM before). `native`: C++ that launches kernel after kernel
(FasterTransformer, SwiftTransformer). `eager`: Python that launches kernel after kernel (vLLM before 0.3)."""
KINDS: tuple[EngineKind, ...] = get_args(EngineKind)


class EngineError(ValueError):
    """An engine that is not known, in a sentence that says what is allowed."""


@dataclass(frozen=True)
class EngineTraits:
    """What an engine kind does, known from its code.

    Attributes:
        flash_decoding: decode attention on tensor cores that reads a group's keys once; else one query head at a time
            on the ordinary cores.
        direct_reduce: small all-reduces in one kernel over peer memory; else NCCL's.
        python: the scheduler is Python; else C++.
        fused: elementwise work is fused into few passes.
    """

    flash_decoding: bool
    direct_reduce: bool
    python: bool
    fused: bool


TRAITS: dict[EngineKind, EngineTraits] = {
    "graphed": EngineTraits(flash_decoding=True, direct_reduce=True, python=True, fused=True),
    "runtime": EngineTraits(flash_decoding=True, direct_reduce=True, python=False, fused=True),
    "compiled": EngineTraits(flash_decoding=False, direct_reduce=False, python=False, fused=True),
    "native": EngineTraits(flash_decoding=False, direct_reduce=False, python=False, fused=False),
    "eager": EngineTraits(flash_decoding=False, direct_reduce=False, python=True, fused=False),
}
WORDS: tuple[tuple[str, EngineKind, float, EngineKind], ...] = (
    ("tensorrt", "compiled", 0.8, "runtime"), ("trtllm", "compiled", 0.8, "runtime"),
    ("distserve", "native", 9.0, "native"), ("swifttransformer", "native", 9.0, "native"),
    ("fastertransformer", "native", 99.0, "native"), ("vllm", "eager", 0.3, "graphed"),
    ("sglang", "graphed", 0.0, "graphed"), ("elasmo", "graphed", 0.0, "graphed"),
)  # fmt: skip
"""A product, its kind before a version, that version, and its kind from there on."""


def engine_kind(text: str) -> EngineKind:
    """The kind that a kind's or a product's name means: `graphed`, `vLLM`, `TensorRT-LLM v0.6.1`.

    Without a version, the newest kind of the product.

    Raises:
        EngineError: not known.
    """
    plain = re.sub(r"[^a-z0-9]", "", text.lower())
    for kind in KINDS:
        if plain == kind:
            return kind
    version = re.search(r"\bv?(\d+)\.(\d+)", text)
    number = float("inf") if version is None else int(version[1]) + int(version[2]) / 100
    for word, before, since, after in WORDS:
        if word in plain:
            whole, _, part = str(since).partition(".")
            return before if number < int(whole) + int(part) / 100 else after
    raise EngineError(
        f"engine={text} is not known; use one of {', '.join(KINDS)}, or a product such as vLLM or TensorRT-LLM."
    )
