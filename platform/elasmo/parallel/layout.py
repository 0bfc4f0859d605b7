"""A layout says along which dimensions a model and its batches are cut, and which rank has which coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
Recompute = Literal["none", "selective", "full"]
Dimension = Literal["pp", "dp", "sp", "tp"]
DIMENSIONS: tuple[Dimension, ...] = ("pp", "dp", "sp", "tp")
"""From the outermost, whose ranks may be far apart, to the innermost, whose ranks talk most."""


@dataclass(frozen=True)
class Layout:
    """How many ways each dimension is cut; the product of dp, tp, pp and sp is the number of ranks.

    Attributes:
        dp: data parallel: other slots of the global batch.
        tp: tensor parallel (Shoeybi et al. 2019): heads, feed-forward channels and vocabulary.
        pp: pipeline parallel: decoder layers in stages.
        sp: Ulysses sequence parallel (Jacobs et al. 2023): tokens of a slot, heads during attention.
        ep: expert parallel: experts over groups of ep of the dp * sp ranks.
        zero_stage: DeepSpeed ZeRO stage; it shards over the dp * sp / ep ranks that hold the same parameters.
        tp_sequence: Megatron sequence parallel (Korthikanti et al. 2022): norms and residuals sharded over tp too.
        schedule: order of micro-batches through the stages.
        chunks: stages of a rank: 1, or more for `interleaved` and 2 for `zero-bubble`.
        recompute: which activations the backward pass computes again.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    sp: int = 1
    ep: int = 1
    zero_stage: int = 1
    tp_sequence: bool = False
    schedule: Schedule = "1f1b"
    chunks: int = 1
    recompute: Recompute = "none"

    @property
    def world(self) -> int:
        """Ranks."""
        return self.dp * self.tp * self.pp * self.sp

    @property
    def zero_ranks(self) -> int:
        """Ranks that hold the same parameters, over which ZeRO shards and DeepSpeed averages gradients."""
        return self.dp * self.sp // self.ep

    @property
    def row_multiple(self) -> int:
        """A slot's packed row has a multiple of this many tokens."""
        return self.sp * (self.tp if self.tp_sequence else 1)

    def __str__(self) -> str:
        cuts = [f"{name}={getattr(self, name)}" for name in ("dp", "tp", "pp", "sp", "ep") if getattr(self, name) > 1]
        flags = ["tp_sequence"] if self.tp_sequence else []
        flags += [self.schedule] if self.pp > 1 else []
        flags += [f"recompute={self.recompute}"] if self.recompute != "none" else []
        return " ".join([*(cuts or ["one rank"]), f"zero={self.zero_stage}", *flags])


@dataclass(frozen=True)
class Place:
    """A rank's coordinates. `ep` numbers its place among the ranks that share the experts."""

    pp: int
    dp: int
    sp: int
    tp: int
    ep: int


def place(layout: Layout, rank: int) -> Place:
    """Coordinates of a rank."""
    rest, tp = divmod(rank, layout.tp)
    rest, sp = divmod(rest, layout.sp)
    pp, dp = divmod(rest, layout.dp)
    return Place(pp, dp, sp, tp, (dp * layout.sp + sp) % layout.ep)


def stage_rank(layout: Layout, number: int) -> int:
    """Pipeline coordinate of a stage: round and round, or for `zero-bubble` there and back (ZB-V, Qi et al. 2024)."""
    turn, rank = divmod(number, layout.pp)
    return layout.pp - 1 - rank if layout.schedule == "zero-bubble" and turn % 2 else rank


def groups(layout: Layout, *dimensions: str) -> list[list[int]]:
    """Ranks that differ in `dimensions` only, a list for each group, all in rank order.

    `ep` as a dimension means the ep ranks that share the experts, and `zero` the ranks that hold the same parameters;
    both are parts of dp and sp.
    """
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(layout.world):
        at = place(layout, rank)
        replica = (at.dp * layout.sp + at.sp) // layout.ep
        key = []
        if "pp" not in dimensions:
            key.append(at.pp)
        if "tp" not in dimensions:
            key.append(at.tp)
        if "ep" in dimensions or "zero" in dimensions:
            key += [] if "ep" in dimensions else [at.ep]
            key += [] if "zero" in dimensions else [replica]
        else:
            key += [] if "dp" in dimensions else [at.dp]
            key += [] if "sp" in dimensions else [at.sp]
        found.setdefault(tuple(key), []).append(rank)
    return list(found.values())
