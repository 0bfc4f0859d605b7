"""The process groups of a layout, made once by all ranks together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from elasmo.parallel.layout import Layout, Place, groups, place, stage_rank


@dataclass(frozen=True)
class Group:
    """One process group as this rank sees it; without a handle it has this rank alone and needs no communication."""

    handle: dist.ProcessGroup | None
    ranks: tuple[int, ...]
    rank: int

    @property
    def size(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True)
class Mesh:
    """This rank's place in a layout and the groups it belongs to.

    Attributes:
        tp, sp, pp, ep: ranks that differ in that dimension only.
        slot: ranks that compute the same slot: all of pp, sp and tp.
        zero: ranks that hold the same parameters, of which ZeRO shards the optimizer.
        unlike: ranks that, one for each place in `zero`, together hold the whole model: all of pp, ep and tp.
        ends: first and last pipeline stage, which share tied embeddings; elsewhere alone, as where both are one rank.
    """

    layout: Layout
    place: Place
    tp: Group
    sp: Group
    pp: Group
    ep: Group
    slot: Group
    zero: Group
    unlike: Group
    ends: Group


def make_mesh(layout: Layout, timeout_s: float = 60.0) -> Mesh:
    """Makes all groups of a layout; every rank of the default group calls it.

    Raises:
        ValueError: the layout has another number of ranks than the default group.
    """
    world = dist.get_world_size()
    if layout.world != world:
        raise ValueError(f"The layout {layout} has {layout.world} ranks, {world} are here; choose dp, tp, pp and sp.")
    rank = dist.get_rank()
    made: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def group(*dimensions: str) -> Group:
        return _own([tuple(ranks) for ranks in groups(layout, *dimensions)], rank, made, timeout_s)

    lines = groups(layout, "pp")
    last = stage_rank(layout, layout.pp * layout.chunks - 1)
    first_and_last = [(ranks[0], ranks[last]) for ranks in lines if last]
    rest = [(rank,) for ranks in lines for at, rank in enumerate(ranks) if not last or at not in (0, last)]
    return Mesh(
        layout=layout,
        place=place(layout, rank),
        tp=group("tp"),
        sp=group("sp"),
        pp=group("pp"),
        ep=group("ep"),
        slot=group("pp", "sp", "tp"),
        zero=group("zero"),
        unlike=group("pp", "ep", "tp"),
        ends=_own([*first_and_last, *rest], rank, made, timeout_s),
    )


def _own(
    all_ranks: list[tuple[int, ...]], rank: int, made: dict[tuple[int, ...], dist.ProcessGroup], timeout_s: float
) -> Group:
    """This rank's group of a partition; every rank makes every group, since that is a collective call."""
    mine: tuple[int, ...] = ()
    for ranks in all_ranks:
        if len(ranks) > 1 and ranks not in made:
            made[ranks] = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s))
        if rank in ranks:
            mine = ranks
    return Group(made.get(mine), mine, mine.index(rank))
