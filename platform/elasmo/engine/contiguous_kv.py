"""A second copy of the KV of sequences that decode, one stretch of memory each: a step reads it without gathering.

Pages are what the engine owns, shares and hands over; this copy only saves gathering them at every token, which costs
as much as attention itself on a CPU. It follows the pages: a sequence joins with what its pages hold and is appended to
in the same step. Its memory is bounded; a sequence for which there is no room decodes from its pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_STRETCH = 64
"""Stretches grow by at least so many tokens."""


class ContiguousKV:
    """Slots of equal length, the first ones in use.

    Args:
        pages: [layers, 2, blocks, block_size, kv_heads, head_dim], what joins is read from.
        slots: sequences there may be at a time; memory nobody wrote costs nothing.
        most_tokens: over all slots.
    """

    def __init__(self, pages: Tensor, slots: int, most_tokens: int) -> None:
        self._pages = pages
        self._most_slots = slots
        self._most_tokens = most_tokens
        self._slots: list[str] = []
        self._layers, _, _, self._block_size, self._kv_heads, self._head_dim = pages.shape
        self._values = self._room(0, 0)

    @property
    def tokens(self) -> int:
        """Tokens there is memory for."""
        return self._values.shape[2] * self._values.shape[4]

    def slot(self, request_id: str, table: Sequence[int], computed: int) -> int | None:
        """Where a sequence with `computed` tokens in its pages is, with room for one more; it joins if it must.

        None if there is no memory for it: it is not here then.
        """
        if not self._fits(
            self._slots.index(request_id) + 1 if request_id in self._slots else len(self._slots) + 1, computed + 1
        ):
            self.leave(request_id)
            return None
        if request_id not in self._slots:
            self._join(request_id, table, computed)
        return self._slots.index(request_id)

    @torch.inference_mode()
    def leave(self, request_id: str) -> None:
        """Frees a sequence's slot; the last sequence moves into it. One that is not here is ignored."""
        if request_id not in self._slots:
            return
        slot, last = self._slots.index(request_id), len(self._slots) - 1
        if slot != last:
            self._values[:, :, slot] = self._values[:, :, last]
            self._slots[slot] = self._slots[last]
        self._slots.pop()
        if not self._slots:
            self._values = self._room(0, 0)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [slots, kv_heads, tokens, head_dim]."""
        return self._values[layer, 0], self._values[layer, 1]

    def _fits(self, slots: int, tokens: int) -> bool:
        """Whether there is room, or could be made, for so many slots of so many tokens."""
        had, longest = self._values.shape[2], self._values.shape[4]
        if slots <= had and tokens <= longest:
            return True
        used = len(self._slots)
        longer = longest if tokens <= longest else -(-max(tokens, longest + longest // 2) // _STRETCH) * _STRETCH
        if slots * longer > self._most_tokens:
            longer = max(longest, -(-tokens // _STRETCH) * _STRETCH)
        more = max(slots, had, min(self._most_slots, self._most_tokens // longer))
        if slots * longer > self._most_tokens:
            return False
        more = min(more, self._most_tokens // longer)
        grown = self._room(more, longer)
        grown[:, :, :used, :, :longest] = self._values[:, :, :used]
        grown[:, :, :used, :, longest:] = 0
        self._values = grown
        return True

    def _join(self, request_id: str, table: Sequence[int], length: int) -> None:
        slot = len(self._slots)
        self._slots.append(request_id)
        pages = torch.tensor(table[: -(-length // self._block_size)], dtype=torch.int64, device=self._pages.device)
        for layer in range(self._layers):
            # [2, pages, block_size, kv_heads, head_dim] -> [2, kv_heads, tokens, head_dim]
            gathered = self._pages[layer][:, pages].flatten(1, 2)[:, :length].transpose(1, 2)
            self._values[layer, :, slot, :, :length] = gathered
        # Behind the mask, but zero times NaN is NaN.
        self._values[:, :, slot, :, length:] = 0

    def _room(self, slots: int, tokens: int) -> Tensor:
        shape = (self._layers, 2, slots, self._kv_heads, tokens, self._head_dim)
        return torch.empty(shape, dtype=self._pages.dtype, device=self._pages.device)
