"""What stands at each position of a prompt, for the prefix cache: the same keys mean the same KV, and no others do."""

from __future__ import annotations

from elasmo.config import ModelConfig
from elasmo.engine.kv import media_digests
from elasmo.engine.prefix_cache import Key
from elasmo.model.encoded import Encoded


def prompt_keys(prompt: Encoded, model: ModelConfig) -> tuple[Key, ...]:
    """A token id for a token of text; for a placeholder its medium's digest and which of its placeholders it is.

    Text after a medium needs no digest in its own key: its KV depends on everything before it, and so does a page's
    place in the cache.
    """
    keys: list[Key] = [int(token) for token in prompt.tokens]
    places = [at for at, token in enumerate(prompt.tokens) if token in model.tokens.media]
    if not places:
        return tuple(keys)
    begins = {}
    for described in media_digests(prompt, model):
        kind_and_place, digest = described.rsplit(":", 1)
        begins[int(kind_and_place.rsplit("@", 1)[1])] = digest
    digest, number = "", 0
    for at in places:
        if at in begins:
            digest, number = begins[at], 0
        keys[at] = f"{digest}+{number}"
        number += 1
    return tuple(keys)
