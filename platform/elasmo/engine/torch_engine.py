"""The embedded engine: plain torch, paged KV with a prefix cache, continuous batching; small enough to read.

A step is: the scheduler says what to compute, the runner computes it, the sampler draws. Everything a sequence's tokens
depend on is its own (prompt, parameters, the tokens before); who shares its step decides when they come, not which.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elasmo.config import EngineConfig
from elasmo.engine.block_manager import BlockManager
from elasmo.engine.contract import EngineFull, EngineRefused, EngineStats, Finish, StepOutput
from elasmo.engine.grammar import GrammarCompiler, GrammarError, Matcher
from elasmo.engine.kv import LAYOUT, KVCachePayload, export, to_tensor, verify, verify_values
from elasmo.engine.logprobs import token_logprobs
from elasmo.engine.model_runner import ModelRunner, Work
from elasmo.engine.prompt_keys import prompt_keys
from elasmo.engine.radix_cache import RadixCache
from elasmo.engine.sampling import SamplingParams, sample
from elasmo.engine.scheduler import Budget, Chunk, Need, Plan, schedule
from elasmo.engine.sequence import PromptMedia
from elasmo.engine.sequence import Sequence as Request
from elasmo.model.encoded import Encoded
from elasmo.model.moe import MoE
from elasmo.model.multimodal import MultimodalDecoder


class TorchEngine:
    """Runs one model on this process's device.

    Args:
        model: in evaluation mode; its dtype is the KV cache's.
        processor_hash, model_hash: written into every envelope and demanded of every KV cache.
        config: pages, batch size and what a step may compute.
        grammars: compiles what requests demand of their text; None refuses such requests.
    """

    def __init__(
        self,
        model: MultimodalDecoder,
        processor_hash: str,
        model_hash: str,
        config: EngineConfig,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = _without_capacity(model.eval().to(self.device))
        self.config = config
        decoder, tokens = model.config.decoder, model.config.tokens
        self._ends = frozenset(tokens.end)
        self._never = [token for token in (*tokens.never, *tokens.media) if token < model.vocab_size]
        self._runner = ModelRunner(self.model, config.blocks, config.block_size, config.max_batch)
        self.dtype = self._runner.dtype
        self._identity: dict[str, Any] = {
            "model_hash": model_hash,
            "processor_hash": processor_hash,
            "dtype": str(self.dtype).removeprefix("torch."),
            "layout": LAYOUT,
            "layers": decoder.layers,
            "kv_heads": decoder.kv_heads,
            "head_dim": decoder.head_size,
        }
        cache = RadixCache(config.block_size) if config.prefix_cache else None
        self.blocks = BlockManager(config.blocks, config.block_size, cache)
        self._grammars = grammars
        # Both oldest first: arrival order is the order of a request's first entry.
        self._running: dict[str, Request] = {}
        self._waiting: dict[str, Request] = {}
        self._failures: list[tuple[str, str]] = []
        self._generated = self._prompted = self._cached = self._preemptions = 0

    def prefill(self, prompt: Encoded, params: SamplingParams) -> KVCachePayload:
        """Runs a prompt and samples token 0; see `Engine.prefill`."""
        request = self._request("prefill", prompt, params)
        with torch.inference_mode():
            try:
                if not self._open(request):
                    raise EngineFull(self._too_few(request.known))
                while not request.tokens:
                    size = min(request.known - request.computed, self.config.prefill_tokens)
                    self._compute([Chunk(request.request_id, request.computed, size)], {request.request_id: request})
                    if request.failure is not None:
                        raise EngineRefused(request.failure)
                table = torch.tensor(self.blocks.table(request.request_id), device=self.device)
                layers = [layer[:, table].flatten(1, 2)[:, : request.prompt_tokens] for layer in self._runner.pages]
                latents = self._last_latents(request)
                return export(self._identity, prompt, self.model.config, layers, latents, request)
            finally:
                self._close(request)

    @torch.inference_mode()
    def embed(self, prompt: Encoded) -> NDArray[np.float32]:
        """The mean of a prompt's last hidden states, float32 [hidden], of length 1; raises as `prefill` does."""
        params = SamplingParams(1)
        self._check_context(len(prompt.tokens), params)
        request = Request("embed", params, len(prompt.tokens), prompt)
        try:
            if not self._open(request):
                raise EngineFull(self._too_few(request.known))
            total = torch.zeros(self.model.config.decoder.hidden, device=self.device)
            while request.computed < request.known:
                size = min(request.known - request.computed, self.config.prefill_tokens)
                chunk = Chunk(request.request_id, request.computed, size)
                _, (states,) = self._runner.run([Work(request, chunk, self.blocks.table(request.request_id))])
                total += states.float().sum(dim=0)
                request.computed += size
            mean: NDArray[np.float32] = torch.nn.functional.normalize(total, dim=0).cpu().numpy()
            return mean
        finally:
            self._close(request)

    def add(self, request_id: str, prompt: Encoded, params: SamplingParams, replay: Sequence[int] = ()) -> None:
        """Queues a prompt; see `Engine.add`."""
        self._check_new(request_id)
        self._waiting[request_id] = self._request(request_id, prompt, params, replay)

    @torch.inference_mode()
    def admit(
        self, request_id: str, payload: KVCachePayload, params: SamplingParams, replay: Sequence[int] = ()
    ) -> None:
        """Copies a prompt's KV into pages; see `Engine.admit`.

        It gets all the pages it may ever need: its prompt could not be computed here again.
        """
        envelope = payload.envelope
        verify(envelope, **self._identity, seed=params.seed)
        verify_values(payload)
        self._check_context(envelope.tokens, params)
        if replay and replay[0] != envelope.first_token:
            raise EngineRefused(f"The replay begins with token {replay[0]}, the KV cache with {envelope.first_token}.")
        self._check_replay(params, replay)
        longest = envelope.tokens + params.max_tokens
        self._check_new(request_id)
        if len(self._running) >= self.config.max_batch:
            raise EngineFull(f"All {self.config.max_batch} places of the batch are taken (serve.engine.max_batch).")
        tokens = list(replay) or [envelope.first_token]
        request = Request(request_id, params, envelope.tokens, tokens=tokens, sent=len(replay))
        request.matcher = self._matcher(params, request.tokens)
        if self.blocks.allocate(request_id, longest) is None:
            raise EngineFull(self._too_few(longest))
        self._write(payload, self.blocks.table(request_id))
        request.computed = envelope.tokens
        request.logprobs, request.prompt_logprobs = payload.first_logprobs, payload.prompt_logprobs
        request.cached = payload.cached_tokens
        if len(payload.latents):
            latents = to_tensor(payload.latents, self.dtype).to(self.device, copy=True)
            request.media = PromptMedia(None, latents[None], torch.ones(1, dtype=torch.int64, device=self.device))
        self._running[request_id] = request

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        """A token for every sequence that is ready for one; see `Engine.step`."""
        fresh = [request for request in self._running.values() if request.sent < len(request.tokens)]
        if fresh:
            return [self._put_out(request) for request in fresh]
        plan = self._plan()
        for request_id in plan.preempt:
            self._preempt(self._running[request_id])
        chunks = [chunk for chunk in map(self._with_room, plan.chunks) if chunk is not None]
        sampled = self._compute(chunks, self._running) if chunks else []
        for request in [request for request in self._running.values() if request.failure is not None]:
            self._failures.append((request.request_id, request.failure or ""))
            self.abort(request.request_id)
        return [self._put_out(request) for request in sampled]

    def failures(self) -> list[tuple[str, str]]:
        failures, self._failures = self._failures, []
        return failures

    def abort(self, request_id: str) -> None:
        """Drops a sequence and frees its pages; an unknown id is ignored."""
        self._waiting.pop(request_id, None)
        if request_id in self._running:
            self._close(self._running.pop(request_id))

    def stats(self) -> EngineStats:
        unopened = sum(request.sent == 0 for request in self._running.values())
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting) + unopened,
            free_blocks=self.blocks.free,
            total_blocks=self.blocks.blocks,
            tokens_generated=self._generated,
            cached_blocks=self.blocks.cached,
            prompt_tokens=self._prompted,
            prompt_tokens_cached=self._cached,
            preemptions=self._preemptions,
        )

    def generate(self, prompt: Encoded, params: SamplingParams) -> list[int]:
        """All tokens of a prompt; other sequences of this engine wait."""
        others = self._running, self._waiting
        self._running, self._waiting = {}, {}
        request_id = "generate"
        try:
            self.add(request_id, prompt, params)
            tokens: list[int] = []
            while self._running or self._waiting:
                outputs = self.step()
                tokens += [output.token for output in outputs]
                for _, reason in self.failures():
                    raise EngineRefused(reason)
                if not outputs and not self._running:
                    raise EngineFull(self._too_few(len(prompt.tokens) + params.max_tokens))
            return tokens
        finally:
            self.abort(request_id)
            self._running, self._waiting = others

    def _request(self, request_id: str, prompt: Encoded, params: SamplingParams, replay: Sequence[int] = ()) -> Request:
        self._check_context(len(prompt.tokens), params)
        self._check_replay(params, replay)
        request = Request(request_id, params, len(prompt.tokens), prompt, tokens=list(replay), sent=len(replay))
        request.keys = prompt_keys(prompt, self.model.config) if self.config.prefix_cache else ()
        request.matcher = self._matcher(params, replay)
        return request

    def _plan(self) -> Plan:
        running = [
            Need(
                request.request_id,
                request.known,
                request.computed,
                len(self.blocks.table(request.request_id)),
                self.blocks.exclusive(request.request_id),
                request.prompt is not None,
            )
            for request in self._running.values()
        ]
        waiting = []
        for request in islice(self._waiting.values(), max(0, self.config.max_batch - len(running))):
            hits, held = self.blocks.hits(self._shareable(request))
            waiting.append(Need(request.request_id, request.known, hits * self.config.block_size, held))
        config = self.config
        return schedule(
            running, waiting, Budget(config.prefill_tokens, config.max_batch, self.blocks.free, config.block_size)
        )

    def _with_room(self, chunk: Chunk) -> Chunk | None:
        """The chunk, its sequence's pages there; None where they are not to be had in this step."""
        request = self._waiting.get(chunk.request_id)
        if request is None:
            return chunk if self.blocks.extend(chunk.request_id, chunk.start + chunk.tokens) else None
        if not self._open(request):
            return None
        del self._waiting[chunk.request_id]
        self._running[chunk.request_id] = request
        # Another one that was admitted before may have published, or needed, a page that was counted on.
        return Chunk(chunk.request_id, request.computed, min(chunk.tokens, request.known - request.computed))

    def _open(self, request: Request) -> bool:
        """Takes pages for all known tokens of a sequence, those of a known beginning as they are."""
        computed = self.blocks.allocate(request.request_id, request.known, self._shareable(request))
        if computed is None:
            return False
        request.computed = computed
        if not request.tokens:  # what a preempted one finds again was its own
            request.cached = computed
        assert request.prompt is not None  # those whose KV was handed over are not opened but admitted
        if request.media is None:
            request.media = self._runner.encode(request.prompt, computed)
        self._prompted += request.prompt_tokens
        self._cached += min(computed, request.prompt_tokens)
        return True

    def _shareable(self, request: Request) -> Sequence[Any]:
        """The keys by which pages of others can stand for a sequence's own."""
        read = len(request.prompt_logprobs or ())
        unread = request.params.prompt_logprobs is not None and read < request.prompt_tokens
        # What the cache holds is never computed, so it gives no logits.
        return () if unread or not request.keys else (*request.keys, *request.tokens)

    def _compute(self, chunks: Sequence[Chunk], requests: dict[str, Request]) -> list[Request]:
        """Runs chunks and samples for the sequences that are computed to their end; returns those."""
        work = [Work(requests[chunk.request_id], chunk, self.blocks.table(chunk.request_id)) for chunk in chunks]
        ordered, hidden = self._runner.run(work)
        for piece, states in zip(ordered, hidden, strict=True):
            request = piece.sequence
            if request.params.prompt_logprobs is not None and piece.chunk.start < request.prompt_tokens:
                self._read_prompt(request, piece.chunk, states)
            before = request.computed // self.config.block_size
            request.computed += piece.chunk.tokens
            if request.keys and request.computed // self.config.block_size > before:
                self.blocks.publish(request.request_id, request.content())
        ended = [(piece, states) for piece, states in zip(ordered, hidden, strict=True) if _computed(piece.sequence)]
        if not ended:
            return []
        logits = self._logits(torch.stack([states[-1] for _, states in ended]))
        done = set()
        for (piece, _), scores in zip(ended, logits, strict=True):
            try:
                self._sample(piece.sequence, scores)
            except GrammarError as error:
                # One request's grammar must not fail the step of all.
                piece.sequence.failure = str(error)
            else:
                done.add(piece.sequence.request_id)
        # In order of arrival, whatever the order of computing was.
        return [request for request in requests.values() if request.request_id in done]

    def _sample(self, request: Request, scores: NDArray[np.float32]) -> None:
        params = request.params
        allowed = request.matcher.allowed() if request.matcher is not None else None
        masked = scores.copy()
        masked[self._never] = -np.inf
        token = sample(masked, params, len(request.tokens), request.tokens, allowed)
        if request.matcher is not None:
            request.matcher.accept([token])
        if params.logprobs is not None:
            request.logprobs = token_logprobs(scores, token, params.logprobs)
        request.tokens.append(token)

    def _read_prompt(self, request: Request, chunk: Chunk, states: Tensor) -> None:
        """Log-probabilities of the prompt's tokens that follow those of a chunk."""
        assert request.prompt is not None and request.params.prompt_logprobs is not None
        if request.prompt_logprobs is None:
            request.prompt_logprobs = [None]
        # After a preemption the prompt is computed again, and was read before.
        first = max(chunk.start, len(request.prompt_logprobs) - 1)
        last = min(chunk.start + chunk.tokens, request.prompt_tokens - 1)
        if first >= last:
            return
        logits = self._logits(states[first - chunk.start : last - chunk.start])
        for at, scores in enumerate(logits, start=first + 1):
            read = token_logprobs(scores, int(request.prompt.tokens[at]), request.params.prompt_logprobs)
            request.prompt_logprobs.append(read)

    def _logits(self, hidden: Tensor) -> NDArray[np.float32]:
        """float32 [rows, vocab] on the host."""
        logits: NDArray[np.float32] = self.model.logits(hidden).float().cpu().numpy()
        return logits

    def _put_out(self, request: Request) -> StepOutput:
        """The sequence's newest token; a finished sequence leaves the engine."""
        index, token, params = len(request.tokens) - 1, request.tokens[-1], request.params
        finish: Finish | None = None
        if token in self._ends and not params.ignore_end:
            finish = "stop"
        elif index + 1 >= params.max_tokens:
            finish = "length"
        request.sent = index + 1
        self._generated += 1
        prompt = tuple(request.prompt_logprobs) if request.prompt_logprobs is not None and index == 0 else None
        if finish is not None:
            self.abort(request.request_id)
        cached = request.cached if index == 0 else 0
        return StepOutput(request.request_id, index, token, finish, request.logprobs, prompt, cached)

    def _preempt(self, request: Request) -> None:
        """Takes a sequence's pages; it waits at the head of the queue, to be computed again."""
        self._preemptions += 1
        del self._running[request.request_id]
        self._close(request)
        request.computed = 0
        self._waiting = {request.request_id: request, **self._waiting}

    def _close(self, request: Request) -> None:
        self._runner.forget(request.request_id)
        self.blocks.release(request.request_id)

    def _matcher(self, params: SamplingParams, tokens: Sequence[int]) -> Matcher | None:
        if params.grammar is None:
            return None
        if self._grammars is None:
            raise EngineRefused("This engine was started without a tokenizer, so it follows no grammar.")
        try:
            matcher = self._grammars.matcher(params.grammar)
            matcher.accept(tokens)
        except GrammarError as error:
            raise EngineRefused(str(error)) from None
        return matcher

    def _last_latents(self, request: Request) -> Tensor:
        media = request.media
        if media is None or media.latents is None or media.medium is None or int(media.medium[-1]) == 0:
            return torch.empty(0, 0, dtype=self.dtype)
        return media.latents[int(media.medium[-1]) - 1]

    def _write(self, payload: KVCachePayload, table: Sequence[int]) -> None:
        """Copies a prompt's KV into its sequence's pages."""
        at = torch.arange(payload.envelope.tokens)
        page = torch.tensor(table)[at // self.config.block_size].to(self.device)
        place = (at % self.config.block_size).to(self.device)
        for pages, layer in zip(self._runner.pages, payload.layers, strict=True):
            pages[:, page, place] = to_tensor(layer, self.dtype).to(self.device)

    def _check_new(self, request_id: str) -> None:
        if request_id in self._running or request_id in self._waiting:
            raise ValueError(f"Request {request_id!r} is running already; give every request its own id.")

    def _check_replay(self, params: SamplingParams, replay: Sequence[int]) -> None:
        ended = not self._ends.isdisjoint(replay) and not params.ignore_end
        if len(replay) >= params.max_tokens or ended:
            raise EngineRefused(
                f"The replay of {len(replay)} tokens is finished already; there is nothing to generate."
            )

    def _check_context(self, prompt_tokens: int, params: SamplingParams) -> None:
        longest, limit = prompt_tokens + params.max_tokens, self.model.config.decoder.max_seq
        if longest > limit:
            raise EngineRefused(
                f"The prompt of {prompt_tokens} tokens and max_tokens={params.max_tokens} exceed {limit}."
            )
        needed = self.blocks.needed(longest)
        if needed > self.blocks.blocks:
            raise EngineRefused(
                f"The sequence of up to {longest} tokens needs {needed} KV pages; the engine has {self.blocks.blocks} "
                "(serve.engine.blocks)."
            )

    def _too_few(self, tokens: int) -> str:
        return f"The sequence needs {self.blocks.needed(tokens)} KV pages, {self.blocks.free} are free."


def _without_capacity(model: MultimodalDecoder) -> MultimodalDecoder:
    """The model, its experts dropping no token: who shares a step must not decide what an expert computes."""
    for module in model.modules():
        if isinstance(module, MoE):
            module.config = module.config.model_copy(update={"capacity_factor": None})
    return model


def _computed(request: Request) -> bool:
    return request.computed == request.known
