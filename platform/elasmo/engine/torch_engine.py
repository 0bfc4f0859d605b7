"""The embedded engine: plain torch, paged KV, continuous batching; small enough to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elasmo.config import EngineConfig
from elasmo.engine.block_manager import BlockManager
from elasmo.engine.contract import EngineFull, EngineRefused, EngineStats, Finish, StepOutput
from elasmo.engine.kv import (
    LAYOUT,
    KVCachePayload,
    KVEnvelope,
    checksum,
    media_digests,
    to_array,
    to_tensor,
    verify,
    verify_values,
)
from elasmo.engine.paged_attention import CapturingAttention, PagedAttention
from elasmo.engine.sampling import SamplingParams, sample
from elasmo.model.batch import collate
from elasmo.model.cross_attention import MediaContext, media_context
from elasmo.model.encoded import Encoded
from elasmo.model.multimodal import MultimodalDecoder


@dataclass
class _Sequence:
    request_id: str
    params: SamplingParams
    pages: tuple[int, ...]
    length: int  # tokens in the cache
    tokens: list[int]  # generated so far; the last one is not in the cache yet
    replay: tuple[int, ...]
    latents: Tensor  # [latents, hidden] that its tokens look at by cross-attention
    opened: bool = False  # its first token was put out


class TorchEngine:
    """Runs one model on this process's device.

    Args:
        model: in evaluation mode; its dtype is the KV cache's.
        processor_hash, model_hash: written into every envelope and demanded of every KV cache.
        config: pages and batch size.
    """

    def __init__(self, model: MultimodalDecoder, processor_hash: str, model_hash: str, config: EngineConfig) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.eval().to(self.device)
        self.config = config
        decoder, tokens = model.config.decoder, model.config.tokens
        self._ends = frozenset(tokens.end)
        self._never = [token for token in (*tokens.never, *tokens.media) if token < model.vocab_size]
        self.dtype = next(model.parameters()).dtype
        self._identity: dict[str, Any] = {
            "model_hash": model_hash,
            "processor_hash": processor_hash,
            "dtype": str(self.dtype).removeprefix("torch."),
            "layout": LAYOUT,
            "layers": decoder.layers,
            "kv_heads": decoder.kv_heads,
            "head_dim": decoder.head_size,
        }
        self.blocks = BlockManager(config.blocks, config.block_size)
        shape = (decoder.layers, 2, config.blocks, config.block_size, decoder.kv_heads, decoder.head_size)
        self._pages = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self._sequences: dict[str, _Sequence] = {}
        self._generated = 0

    @torch.inference_mode()
    def prefill(self, prompt: Encoded, params: SamplingParams) -> KVCachePayload:
        """Runs a prompt and samples token 0; keeps nothing."""
        self._check_context(len(prompt.tokens), params)
        batch = collate([prompt]).to(self.device)
        attention = CapturingAttention()
        positions = torch.arange(len(prompt.tokens), device=self.device)[None]
        media = self.model.encode(batch)
        context = self.model.context(batch.tokens, positions, media)
        hidden = self.model.decode(self.model.embed(batch.tokens, media), positions, attention, context)
        first = self._sample(self.model.logits(hidden[0, -1]), params, 0)
        layers = tuple(to_array(layer) for layer in attention.layers)
        latents = to_array(hidden.new_empty(0, 0) if context is None else context.last())
        envelope = KVEnvelope(
            **self._identity,
            tokens=len(prompt.tokens),
            media_digests=media_digests(prompt, self.model.config),
            latents=len(latents),
            first_token=first,
            seed=params.seed,
            checksum=checksum((*layers, latents)),
        )
        return KVCachePayload(envelope, layers, latents)

    @torch.inference_mode()
    def admit(
        self, request_id: str, payload: KVCachePayload, params: SamplingParams, replay: Sequence[int] = ()
    ) -> None:
        """Copies a prompt's KV into pages; see `Engine.admit`."""
        envelope = payload.envelope
        verify(envelope, **self._identity, seed=params.seed)
        verify_values(payload)
        self._check_context(envelope.tokens, params)
        if replay and replay[0] != envelope.first_token:
            raise EngineRefused(f"The replay begins with token {replay[0]}, the KV cache with {envelope.first_token}.")
        if len(replay) >= params.max_tokens or not self._ends.isdisjoint(replay):
            raise EngineRefused(
                f"The replay of {len(replay)} tokens is finished already; there is nothing to generate."
            )
        longest = envelope.tokens + params.max_tokens
        needed = self.blocks.needed(longest)
        if needed > self.blocks.blocks:
            raise EngineRefused(
                f"The sequence of up to {longest} tokens needs {needed} KV pages; the engine has {self.blocks.blocks} "
                "(serve.engine.blocks)."
            )
        if len(self._sequences) >= self.config.max_batch:
            raise EngineFull(f"All {self.config.max_batch} places of the batch are taken (serve.engine.max_batch).")
        pages = self.blocks.allocate(request_id, longest)
        if pages is None:
            raise EngineFull(f"The sequence needs {needed} KV pages, {self.blocks.free} are free.")
        self._write(payload, pages)
        latents = to_tensor(payload.latents, self.dtype).to(self.device, copy=True)
        self._sequences[request_id] = _Sequence(
            request_id, params, pages, envelope.tokens, [envelope.first_token], tuple(replay), latents
        )

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        """One token for every running sequence; newly admitted ones put out token 0 first, without computing."""
        fresh = [sequence for sequence in self._sequences.values() if not sequence.opened]
        if fresh:
            outputs = []
            for sequence in fresh:
                sequence.opened = True
                outputs += self._put_out(sequence)
            if outputs:
                return outputs
        running = list(self._sequences.values())
        if not running:
            return []
        logits = self._decode(running)
        outputs = []
        for sequence, scores in zip(running, logits, strict=True):
            sequence.length += 1
            index = len(sequence.tokens)
            forced = index < len(sequence.replay)
            sequence.tokens.append(sequence.replay[index] if forced else self._sample(scores, sequence.params, index))
            outputs += self._put_out(sequence)
        return outputs

    def abort(self, request_id: str) -> None:
        """Drops a sequence and frees its pages; an unknown id is ignored."""
        self._sequences.pop(request_id, None)
        self.blocks.release(request_id)

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._sequences),
            waiting=sum(not sequence.opened for sequence in self._sequences.values()),
            free_blocks=self.blocks.free,
            total_blocks=self.blocks.blocks,
            tokens_generated=self._generated,
        )

    def generate(self, prompt: Encoded, params: SamplingParams) -> list[int]:
        """All tokens of a prompt; other sequences of this engine wait."""
        others, self._sequences = self._sequences, {}
        request_id = "generate"
        try:
            self.admit(request_id, self.prefill(prompt, params), params)
            tokens = []
            while self._sequences:
                tokens += [output.token for output in self.step()]
            return tokens
        finally:
            self.abort(request_id)
            self._sequences = others

    def _decode(self, running: Sequence[_Sequence]) -> Tensor:
        """Logits [batch, vocab] after each sequence's last token, whose KV enters the cache."""
        most = max(self.blocks.needed(sequence.length + 1) for sequence in running)
        # Padded with a page of the sequence's own: it never reads a neighbour's, not even behind the mask.
        rows = [(*sequence.pages, *sequence.pages[-1:] * most)[:most] for sequence in running]
        tables = torch.tensor(rows, device=self.device)
        lengths = torch.tensor([sequence.length for sequence in running], device=self.device)
        tokens = torch.tensor([[sequence.tokens[-1]] for sequence in running], device=self.device)
        attention = PagedAttention(self._pages, tables, lengths)
        context = self._context(running)
        hidden = self.model.decode(self.model.embed_tokens(tokens), lengths[:, None], attention, context)
        return self.model.logits(hidden[:, 0])

    def _context(self, running: Sequence[_Sequence]) -> MediaContext | None:
        """What the sequences' next tokens look at: each at its own prompt's last medium."""
        looking = [number for number, sequence in enumerate(running) if len(sequence.latents)]
        if not looking:
            return None
        medium = torch.zeros(len(running), 1, dtype=torch.int64, device=self.device)
        medium[looking, 0] = torch.arange(1, len(looking) + 1, device=self.device)
        return media_context(torch.stack([running[number].latents for number in looking]), medium)

    def _put_out(self, sequence: _Sequence) -> list[StepOutput]:
        """The sequence's newest token, unless it was sent before; a finished sequence leaves the engine."""
        index = len(sequence.tokens) - 1
        if index < len(sequence.replay):
            return []
        token = sequence.tokens[-1]
        finish: Finish | None = None
        if token in self._ends:
            finish = "stop"
        elif index + 1 >= sequence.params.max_tokens:
            finish = "length"
        if finish is not None:
            self.abort(sequence.request_id)
        self._generated += 1
        return [StepOutput(sequence.request_id, index, token, finish)]

    def _sample(self, logits: Tensor, params: SamplingParams, index: int) -> int:
        scores = logits.float().cpu().numpy().copy()
        scores[self._never] = -np.inf
        return sample(scores, params, index)

    def _write(self, payload: KVCachePayload, pages: tuple[int, ...]) -> None:
        """Fills all pages of a sequence: zeros follow its KV, since NaN left by another one would pass the mask."""
        size, tokens = self.config.block_size, payload.envelope.tokens
        for number, layer in enumerate(payload.layers):
            values = to_tensor(layer, self.dtype).to(self.device)
            padded = torch.zeros((2, len(pages) * size, *values.shape[2:]), dtype=self.dtype, device=self.device)
            padded[:, :tokens] = values
            self._pages[number][:, list(pages)] = padded.view(2, len(pages), size, *values.shape[2:])

    def _check_context(self, prompt_tokens: int, params: SamplingParams) -> None:
        limit = self.model.config.decoder.max_seq
        if prompt_tokens + params.max_tokens > limit:
            raise EngineRefused(
                f"The prompt of {prompt_tokens} tokens and max_tokens={params.max_tokens} exceed {limit}."
            )
