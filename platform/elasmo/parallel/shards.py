"""What a rank holds of each parameter, and what has to happen to its gradient: the one record that all cuts write."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn

Dim = Literal["tp", "pp", "ep", "ends"]


@dataclass(frozen=True)
class Shard:
    """A rank's part of one full tensor.

    Attributes:
        shape: of the full tensor.
        box: [start, stop) along each dimension that this rank holds.
        partial: groups over which the gradient must be summed, one after the other; ZeRO's own group comes after them.
        counted: whether this rank's copy stands for all copies in the gradient norm and in checkpoints.
    """

    shape: tuple[int, ...]
    box: tuple[tuple[int, int], ...]
    partial: tuple[Dim, ...] = ()
    counted: bool = True

    @property
    def is_cut(self) -> bool:
        return self.box != tuple((0, size) for size in self.shape)


def whole(parameter: Tensor) -> Shard:
    """A parameter that is not cut."""
    shape = tuple(parameter.shape)
    return Shard(shape, tuple((0, size) for size in shape))


def share(size: int, parts: int, part: int) -> tuple[int, int]:
    """[start, stop) of a part when `size` items are cut into contiguous parts that differ by at most one."""
    return part * size // parts, (part + 1) * size // parts


def cut(
    module: nn.Module, name: str, shards: dict[str, Shard], full_name: str, dim: int, parts: int, part: int
) -> None:
    """Replaces a parameter by its part along `dim` and records it."""
    parameter = getattr(module, name)
    old = shards[full_name]
    start, stop = share(parameter.shape[dim], parts, part)
    data = parameter.detach().narrow(dim, start, stop - start).clone()
    setattr(module, name, nn.Parameter(data, requires_grad=parameter.requires_grad))
    box = tuple((start, stop) if d == dim else edge for d, edge in enumerate(old.box))
    shards[full_name] = replace(old, box=box)
