"""One request inside the engine: what it knows, how much of it is computed, and what it has put out."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from elasmo.engine.grammar import Matcher
from elasmo.engine.logprobs import TokenLogprobs
from elasmo.engine.prefix_cache import Key
from elasmo.engine.sampling import SamplingParams
from elasmo.model.encoded import Encoded


@dataclass
class PromptMedia:
    """What a prompt's media became.

    Attributes:
        embeddings: [prompt, hidden] with media in their places; None where no medium stands in the sequence.
        latents: [media, latents, hidden] for cross-attention; no media where the model has none.
        medium: int64 [prompt], from 1, the medium that each token looks at, 0 for none.
    """

    embeddings: Tensor | None
    latents: Tensor | None = None
    medium: Tensor | None = None


@dataclass
class Sequence:
    """A request.

    Attributes:
        prompt_tokens: length of the prompt.
        prompt: None where its KV was handed over.
        keys: of the prompt, for the prefix cache; none where its KV was handed over.
        tokens: generated so far, or handed over to be computed again; all but the last may be in the cache.
        sent: how many of them were put out, here or before.
        computed: tokens of prompt and `tokens` that are in its pages.
        cached: tokens of the prompt that a prefix cache held, here or where it was prefilled.
        media: kept until the last token, once they are encoded.
        logprobs: of the newest token.
        failure: why there is no next token, where there is none.
        prompt_logprobs: of the prompt's tokens so far, where asked for; None at the first, before which nothing stands.
    """

    request_id: str
    params: SamplingParams
    prompt_tokens: int
    prompt: Encoded | None = None
    keys: tuple[Key, ...] = ()
    tokens: list[int] = field(default_factory=list)
    sent: int = 0
    computed: int = 0
    cached: int = 0
    media: PromptMedia | None = None
    matcher: Matcher | None = None
    logprobs: TokenLogprobs | None = None
    failure: str | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    @property
    def known(self) -> int:
        """Tokens of prompt and answer."""
        return self.prompt_tokens + len(self.tokens)

    def content(self) -> tuple[Key, ...]:
        """Keys of everything that is computed."""
        return (*self.keys, *self.tokens)[: self.computed]
