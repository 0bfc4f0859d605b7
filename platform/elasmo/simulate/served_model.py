"""Models that published serving rows name: a shape from the tables, else one estimated from its parameter counts.

A name leads a person's words to numbers here and nowhere else: the cost model sees the numbers only.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cache

from elasmo.simulate.describe import from_shape, known_model, shape_names
from elasmo.simulate.model import Attention, Experts, FeedForward, Model, ModelError, Tower, decoder
from elasmo.simulate.named import named_model
from elasmo.simulate.published import optional_number, read_table

SUFFIXES = re.compile(
    r"[-_ ](instruct|thinking|chat|it|hf|fp8|fp4|nvfp4|bf16|w4a16|awq|gptq|\d{4}|v\d+(\.\d+)?|base)$", re.I
)


@dataclass(frozen=True)
class Served:
    """A model and how well its shape is known."""

    model: Model
    known: bool
    note: str


@cache
def served_model(name: str, total_b: float | None = None, active_b: float | None = None) -> Served:
    """The model that a row names; where its shape is not in the tables, one with its parameter counts.

    Args:
        total_b, active_b: parameters in billions, all and those that a token passes.

    Raises:
        ModelError: neither the name nor a parameter count is known.
    """
    plain = _plain(name)
    for row in read_table("S00_served_shapes"):
        if plain in (_plain(row["model"]), *row["aliases"].split("|")):
            return Served(_described(row), True, row["source"])
    for known in shape_names():
        if _plain(known) == plain:
            return Served(known_model(known), True, "published shape")
    if total_b:
        shape = estimated(total_b, active_b or total_b)
        return Served(replace(shape, name=name), False, "shape estimated from its parameter counts")
    raise ModelError(
        f"model={name} is not among the published shapes and total_params_b is blank; give the parameter count, "
        "a config.json or a config of Elasmo."
    )


def model_named(text: str) -> Served:
    """The model of a person's words: a shape that is served, else whatever `named_model` knows.

    Raises:
        ModelError: nothing of that name, or a file that does not describe a model.
    """
    try:
        return served_model(text)
    except ModelError:
        return Served(named_model(text), True, text)


def _plain(name: str) -> str:
    text = name.split("/")[-1]
    while True:
        shorter = SUFFIXES.sub("", text)
        if shorter == text:
            return re.sub(r"[^a-z0-9]", "", text.lower())
        text = shorter


def _described(row: dict[str, str]) -> Model:
    if not row["head_dim"]:  # multi-head latent attention is written out in the table of shapes
        return known_model(row["model"])
    model = from_shape({**row, "n_params_b": ""})
    gated = row["gated"] == "yes"
    window, every = optional_number(row["window"]), int(optional_number(row["full_every"]) or 1)
    layers = []
    for number, layer in enumerate(model.layers):
        seen = int(window) if window and (number + 1) % every else None
        ffn = replace(layer.feed_forward, gated=gated) if layer.feed_forward is not None else None
        experts = layer.experts
        if experts is not None:
            experts = replace(experts, each=replace(experts.each, gated=gated))
        layers.append(
            replace(layer, attention=replace(layer.attention, window=seen), feed_forward=ffn, experts=experts)
        )
    return replace(model, layers=tuple(layers), tied=row["tied"] == "yes", towers=_towers(row, model.hidden))


def _towers(row: dict[str, str], out: int) -> tuple[Tower, ...]:
    if not row["vit_layers"]:
        return ()
    layers, h, heads, ffn, positions, tokens = (
        int(row[key]) for key in ("vit_layers", "vit_hidden", "vit_heads", "vit_ffn", "vit_positions", "media_tokens")
    )
    attention = Attention(heads, heads, h // heads, h // heads, bias=True, out_bias=True)
    return (
        Tower("vision", h, layers, attention, FeedForward(ffn, False, True), positions, tokens, (h, out), 3 * 196 * h),
    )


def estimated(total_b: float, active_b: float) -> Model:
    """A decoder of today's habits with those parameters: 128-wide heads, 8 of keys, gated, vocabulary of 128k.

    Depth and width follow the shapes of published dense models (hidden about 128 x layers^0.9 ... within a third);
    a model with idle parameters gets 128 experts, 8 of them active.
    """
    vocab = 128_000
    dense = active_b * 1e9
    hidden = 256 * max(2, round((dense / 1e9) ** 0.36 * 1980 / 256))
    heads = max(8, 8 * round(hidden / 128 / 8))
    per_layer = hidden * (2 * heads + 16) * 128 + 3 * hidden * 3.5 * hidden
    layers = max(4, round(max(dense - 2 * vocab * hidden, 0.3 * dense) / per_layer))
    if active_b >= total_b * 0.9:
        body = max(dense - 2 * vocab * hidden, 0.3 * dense) / layers - hidden * (2 * heads + 16) * 128
        ffn = 64 * max(1, round(body / (3 * hidden) / 64))
        return decoder(layers=layers, hidden=hidden, heads=heads, ffn=ffn, vocab=vocab, kv_heads=8, head_dim=128)
    experts, top_k = 128, 8
    idle = (total_b - active_b) * 1e9 / layers / (experts - top_k)
    width = 64 * max(1, math.floor(idle / (3 * hidden) / 64))
    each = Experts(experts, top_k, FeedForward(width))
    return decoder(
        layers=layers, hidden=hidden, heads=heads, ffn=width, vocab=vocab, kv_heads=8, head_dim=128, experts=each
    )
