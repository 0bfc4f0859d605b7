"""Runs pieces of many sequences through the model in one pass, with their KV in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elasmo.engine.contiguous_kv import ContiguousKV
from elasmo.engine.scheduler import Chunk
from elasmo.engine.sequence import PromptMedia
from elasmo.engine.sequence import Sequence as Request
from elasmo.engine.step_attention import Row, StepAttention
from elasmo.model.batch import collate
from elasmo.model.cross_attention import MediaContext, media_context
from elasmo.model.encoded import Encoded
from elasmo.model.multimodal import MultimodalDecoder


@dataclass(frozen=True)
class Work:
    """A piece of a sequence and the pages it belongs in."""

    sequence: Request
    chunk: Chunk
    table: Sequence[int]


class ModelRunner:
    """Holds the pages.

    Args:
        model: on the device it runs on.
        blocks, block_size: pages, and tokens in one.
        max_batch: sequences that decode at a time.
    """

    def __init__(self, model: MultimodalDecoder, blocks: int, block_size: int, max_batch: int) -> None:
        self.model = model
        weight = next(model.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        decoder = model.config.decoder
        shape = (decoder.layers, 2, blocks, block_size, decoder.kv_heads, decoder.head_size)
        self.pages = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.contiguous = ContiguousKV(self.pages, max_batch, most_tokens=2 * blocks * block_size)

    def run(self, work: Sequence[Work]) -> tuple[list[Work], list[Tensor]]:
        """Computes the pieces and writes their KV.

        Returns:
            The pieces in the order they were computed, and their hidden states [tokens, hidden].
        """
        ordered, rows = self._rows(work)
        embeddings = torch.cat([self._embed(piece) for piece in ordered])[None]
        spans = [torch.arange(piece.chunk.start, piece.chunk.start + piece.chunk.tokens) for piece in ordered]
        positions = torch.cat(spans).to(self.device)[None]
        attention = StepAttention(self.pages, self.contiguous, rows)
        hidden = self.model.decode(embeddings, positions, attention, self._context(ordered))
        return ordered, list(hidden[0].split([piece.chunk.tokens for piece in ordered]))

    def encode(self, prompt: Encoded, computed: int) -> PromptMedia:
        """A prompt's media, where tokens from `computed` on need them; nothing is run for text alone."""
        ids = self.model.config.tokens
        in_sequence = (ids.table,) if self.model.config.attends else ids.media
        placed = any(int(token) in in_sequence for token in prompt.tokens[computed:])
        attended = self.model.config.attends and any(int(token) in ids.media for token in prompt.tokens)
        if not placed and not attended:
            return PromptMedia(None)
        batch = collate([prompt]).to(self.device)
        media = self.model.encode(batch)
        embeddings = self.model.embed(batch.tokens, media)[0] if placed else None
        context = self.model.context(batch.tokens, batch.positions, media)
        if context is None:
            return PromptMedia(embeddings)
        each = self.model.config.cross_attention.latents
        # The first of a medium's latents in the mask's columns; column 0 is of tokens without a medium.
        column = context.mask.to(torch.uint8).argmax(dim=1)
        medium = torch.where(column > 0, (column - 1) // each + 1, 0)
        return PromptMedia(embeddings, context.latents[1:].unflatten(0, (-1, each)), medium)

    def forget(self, request_id: str) -> None:
        """Frees what is held for a sequence besides its pages."""
        self.contiguous.leave(request_id)

    def _rows(self, work: Sequence[Work]) -> tuple[list[Work], list[Row]]:
        """Pieces in computing order, those that decode from a contiguous slot first, by slot."""
        decoding: list[Work] = []
        others: list[Work] = []
        for piece in work:
            chunk = piece.chunk
            decodes = chunk.tokens == 1 and chunk.start > 0 and chunk.start + 1 == piece.sequence.known
            has_slot = decodes and self.contiguous.slot(chunk.request_id, piece.table, chunk.start) is not None
            (decoding if has_slot else others).append(piece)
        # Asked again: a sequence that found no room and left moved another one.
        slots = [self.contiguous.slot(piece.chunk.request_id, piece.table, piece.chunk.start) for piece in decoding]
        placed = sorted(zip(slots, decoding, strict=True), key=lambda item: item[0] or 0)
        rows = [Row(piece.table, piece.chunk.start, 1, slot) for slot, piece in placed]
        rows += [Row(piece.table, piece.chunk.start, piece.chunk.tokens) for piece in others]
        return [piece for _, piece in placed] + others, rows

    def _embed(self, piece: Work) -> Tensor:
        """[tokens, hidden]."""
        sequence, start = piece.sequence, piece.chunk.start
        end, length = start + piece.chunk.tokens, sequence.prompt_tokens
        parts = []
        if start < length:
            media, prompt = sequence.media, sequence.prompt
            if media is not None and media.embeddings is not None:
                parts.append(media.embeddings[start : min(end, length)])
            else:
                assert prompt is not None  # only of a handed-over prompt is there none, and all of that is computed
                parts.append(self._tokens(prompt.tokens[start : min(end, length)].tolist()))
        if end > length:
            parts.append(self._tokens(sequence.tokens[max(0, start - length) : end - length]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _tokens(self, tokens: Sequence[int]) -> Tensor:
        embedded: Tensor = self.model.embed_tokens(torch.tensor(tokens, dtype=torch.int64, device=self.device))
        return embedded

    def _context(self, work: Sequence[Work]) -> MediaContext | None:
        """What the tokens of all pieces look at: each at the last medium before it in its own prompt."""
        latents: list[Tensor] = []
        looks_at: list[Tensor] = []
        first = 0
        for piece in work:
            media, chunk = piece.sequence.media, piece.chunk
            if media is None or media.latents is None or media.medium is None or len(media.latents) == 0:
                looks_at.append(torch.zeros(chunk.tokens, dtype=torch.int64, device=self.device))
                continue
            places = torch.arange(chunk.start, chunk.start + chunk.tokens, device=self.device)
            medium = media.medium[places.clamp(max=len(media.medium) - 1)]
            looks_at.append(torch.where(medium > 0, medium + first, 0))
            latents.append(media.latents)
            first += len(media.latents)
        return media_context(torch.cat(latents), torch.cat(looks_at)[None]) if latents else None
