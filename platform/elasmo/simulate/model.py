"""What a model is made of, for counting: layers, experts, towers, and frozen parts. Names mean nothing here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

MOST_LAYERS = 10_000
"""More is a slip of the pen, and would fill the memory of the machine that plans."""


class ModelError(ValueError):
    """A description of a model that is incomplete or contradicts itself, in a sentence."""


@dataclass(frozen=True)
class Attention:
    """Self-attention of a layer.

    Attributes:
        heads, kv_heads, head_dim: queries and keys; grouped when there are fewer kv_heads.
        value_dim: of a head's values, and so of what it gives.
        window: tokens that a query sees at most; None for all.
        q_rank, kv_rank, rope_dim: of multi-head latent attention (DeepSeek-V2, 2024): ranks of the compressed queries
            (0: not compressed) and keys, and the part of head_dim that has rotary positions and is shared by heads.
        bias: biases on queries, keys and values. out_bias: on the output.
        head_norm: a norm's weights on each head's queries and keys.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    bias: bool = False
    out_bias: bool = False
    head_norm: bool = False

    @property
    def latent(self) -> bool:
        return self.kv_rank > 0

    def products(self, hidden: int) -> tuple[tuple[int, int], ...]:
        """The matrix products of a token as (outputs, inputs), queries, keys and values first, output last."""
        out = (hidden, self.heads * self.value_dim)
        queries = self.heads * self.head_dim
        if not self.latent:
            return (queries + self.kv_heads * (self.head_dim + self.value_dim), hidden), out
        into = self.q_rank or queries
        down = (into + self.kv_rank + self.rope_dim, hidden)
        up = (self.heads * (self.head_dim - self.rope_dim + self.value_dim), self.kv_rank)
        return (down, *(((queries, self.q_rank),) if self.q_rank else ()), up, out)

    def parameters(self, hidden: int) -> int:
        count = sum(outputs * inputs for outputs, inputs in self.products(hidden))
        if self.latent:
            return count + self.q_rank + self.kv_rank
        if self.bias:
            count += self.heads * self.head_dim + self.kv_heads * (self.head_dim + self.value_dim)
        return count + hidden * self.out_bias + 2 * self.head_dim * self.head_norm

    @property
    def kv_width(self) -> int:
        """Numbers that the KV cache keeps a token: keys and values of all heads, or the latent."""
        if self.latent:
            return self.kv_rank + self.rope_dim
        return self.kv_heads * (self.head_dim + self.value_dim)


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward network; gated ones have three matrices."""

    width: int
    gated: bool = True
    bias: bool = False

    def parameters(self, hidden: int) -> int:
        count = (3 if self.gated else 2) * hidden * self.width
        return count + ((2 if self.gated else 1) * self.width + hidden) * self.bias


@dataclass(frozen=True)
class Experts:
    """Experts in place of a feed-forward network.

    Attributes:
        top_k: experts of a token.
        shared_width: width of what every token passes besides, all shared experts together; 0 for none.
        capacity: times its even share that an expert takes at most; None drops nothing.
    """

    count: int
    top_k: int
    each: FeedForward
    shared_width: int = 0
    capacity: float | None = None

    def parameters(self, hidden: int) -> int:
        return self.count * self.each.parameters(hidden) + self.dense_parameters(hidden)

    def dense_parameters(self, hidden: int) -> int:
        """Of the router and the shared experts."""
        shared = replace(self.each, width=self.shared_width).parameters(hidden) if self.shared_width else 0
        return self.count * hidden + shared

    def active_parameters(self, hidden: int) -> int:
        return self.top_k * self.each.parameters(hidden) + self.dense_parameters(hidden)


@dataclass(frozen=True)
class CrossBlock:
    """A gated block in front of a layer that attends to latents of media (Alayrac et al. 2022)."""

    heads: int
    feed_forward: FeedForward

    def parameters(self, hidden: int) -> int:
        return 4 * hidden * hidden + self.feed_forward.parameters(hidden) + 2 * hidden + 2


@dataclass(frozen=True)
class Layer:
    """A decoder layer."""

    attention: Attention
    feed_forward: FeedForward | None
    experts: Experts | None = None
    cross: CrossBlock | None = None

    def parameters(self, hidden: int, norm_width: int = 1) -> int:
        """`norm_width`: weights of a norm for each hidden dimension, 2 with biases."""
        count = self.attention.parameters(hidden) + 2 * norm_width * hidden
        for part in (self.feed_forward, self.experts, self.cross):
            count += part.parameters(hidden) if part is not None else 0
        return count

    def active_parameters(self, hidden: int, norm_width: int = 1) -> int:
        idle = self.experts.parameters(hidden) - self.experts.active_parameters(hidden) if self.experts else 0
        return self.parameters(hidden, norm_width) - idle


@dataclass(frozen=True)
class Tower:
    """An encoder of one modality and what brings its output to the decoder.

    Attributes:
        positions: that the encoder computes for a medium. tokens: that a medium puts into the decoder's sequence.
        input_parameters: of what makes positions of pixels, frames or cells, position embeddings included.
        input_width: inputs a position: pixels of a patch, mel channels of a frame.
        run_layers: whose output is used; the others are neither run nor kept.
        projector: widths from the encoder's output to the decoder's hidden size, such as (1024, 4096, 4096).
        resampler: latents, layers and width of a Perceiver resampler; None without.
        frozen: trained not: forward only, no gradients, no optimizer state. frozen_projector: likewise.
        media: how many a sequence has on average; `spread` is their standard deviation over that average.
    """

    kind: Literal["vision", "audio", "table"]
    hidden: int
    layers: int
    attention: Attention
    feed_forward: FeedForward
    positions: int
    tokens: int
    projector: tuple[int, ...]
    input_parameters: int = 0
    input_width: int = 0
    other_parameters: int = 0
    resampler: Resampler | None = None
    frozen: bool = False
    frozen_projector: bool = False
    media: float = 1.0
    spread: float = 0.0

    @property
    def layer(self) -> Layer:
        return Layer(self.attention, self.feed_forward)

    @property
    def encoder_parameters(self) -> int:
        own = self.layers * self.layer.parameters(self.hidden, 2) + self.input_parameters + self.other_parameters
        return own

    @property
    def projector_parameters(self) -> int:
        pairs = zip(self.projector, self.projector[1:], strict=False)
        count = sum(outputs * (inputs + 1) for inputs, outputs in pairs)
        return count + (self.resampler.parameters if self.resampler is not None else 0)

    @property
    def parameters(self) -> int:
        return self.encoder_parameters + self.projector_parameters


@dataclass(frozen=True)
class Resampler:
    """A Perceiver resampler: latents that gather a medium."""

    hidden: int
    latents: int
    layers: int
    heads: int
    width: int

    @property
    def parameters(self) -> int:
        h = self.hidden
        layer = 4 * h * h + 2 * h * self.width + self.width + h + 3 * 2 * h
        return self.latents * h + self.layers * layer + 2 * h


@dataclass(frozen=True)
class Model:
    """A decoder and its towers.

    Attributes:
        positions: learned position embeddings; 0 with rotary or ALiBi ones.
        norm_width: weights of a norm for each hidden dimension: 1, or 2 with biases.
        frozen_decoder: only towers, projectors and cross blocks are trained.
        name: for people; nothing is looked up by it.
    """

    hidden: int
    layers: tuple[Layer, ...]
    vocab: int
    tied: bool = True
    positions: int = 0
    norm_width: int = 1
    towers: tuple[Tower, ...] = ()
    frozen_decoder: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if not self.layers or self.hidden < 1 or self.vocab < 1:
            raise ModelError(
                f"A model needs layers, hidden and vocab; given were layers={len(self.layers)}, hidden={self.hidden}, "
                f"vocab={self.vocab}."
            )

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def embedding_parameters(self) -> int:
        """Of tokens and learned positions, the output's included where it is not tied."""
        return self.hidden * (self.vocab * (1 if self.tied else 2) + self.positions)

    @property
    def decoder_parameters(self) -> int:
        inner = sum(layer.parameters(self.hidden, self.norm_width) for layer in self.layers)
        return inner + self.norm_width * self.hidden + self.embedding_parameters

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.decoder_parameters + sum(tower.parameters for tower in self.towers)

    @property
    def active_parameters(self) -> int:
        """Those that a token passes: of experts its own only."""
        idle = sum(
            layer.parameters(self.hidden) - layer.active_parameters(self.hidden)
            for layer in self.layers
            if layer.experts is not None
        )
        return self.parameters - idle

    @property
    def expert_parameters(self) -> int:
        """Of routed experts, which expert parallelism spreads."""
        return sum(
            layer.experts.count * layer.experts.each.parameters(self.hidden)
            for layer in self.layers
            if layer.experts is not None
        )

    @property
    def trained_parameters(self) -> int:
        """Those with gradients."""
        count = 0
        for tower in self.towers:
            count += 0 if tower.frozen else tower.encoder_parameters
            count += 0 if tower.frozen_projector else tower.projector_parameters
        crossed = sum(layer.cross.parameters(self.hidden) for layer in self.layers if layer.cross is not None)
        return count + (crossed if self.frozen_decoder else self.decoder_parameters)

    @property
    def has_experts(self) -> bool:
        return any(layer.experts is not None for layer in self.layers)

    def kv_bytes_per_token(self, size: float = 2.0) -> float:
        """Bytes of KV cache a token over all layers."""
        return size * sum(layer.attention.kv_width for layer in self.layers)


def decoder(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocab: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    gated: bool = True,
    tied: bool = False,
    experts: Experts | None = None,
    first_dense: int = 0,
    every: int = 1,
    attention: Attention | None = None,
    windows: tuple[int | None, ...] = (None,),
    bias: bool = False,
    positions: int = 0,
    norm_width: int = 1,
    name: str = "",
) -> Model:
    """A text decoder of equal layers, with experts in every `every`-th of those after the first `first_dense`.

    `windows` repeats over the layers: (1024, 1024, None) sees 1,024 tokens back in two of three layers.

    Raises:
        ModelError: heads that do not divide what they must.
    """
    if not 1 <= layers <= MOST_LAYERS:
        raise ModelError(f"layers={layers} must be from 1 to {MOST_LAYERS}.")
    kv = kv_heads or heads
    if min(hidden, heads, ffn, vocab, kv) < 1:
        raise ModelError(f"hidden={hidden}, heads={heads}, kv_heads={kv}, ffn={ffn}, vocab={vocab} must be positive.")
    if heads % kv:
        raise ModelError(f"kv_heads={kv} must divide heads={heads}.")
    if head_dim is None and hidden % heads:
        raise ModelError(f"heads={heads} must divide hidden={hidden}, or head_dim must be given.")
    size = head_dim or hidden // heads
    base = attention or Attention(heads, kv, size, size, bias=bias, out_bias=bias)
    made = []
    for number in range(layers):
        seen = replace(base, window=windows[number % len(windows)])
        routed = experts is not None and number >= first_dense and (number - first_dense + 1) % every == 0
        made.append(Layer(seen, None if routed else FeedForward(ffn, gated, bias), experts if routed else None))
    return Model(hidden, tuple(made), vocab, tied, positions, norm_width, name=name)
