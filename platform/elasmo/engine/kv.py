"""KV cache on the move: plain arrays of one prompt, and an envelope that says exactly what they are good for."""

from __future__ import annotations

import hashlib
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elasmo.config import ModelConfig
from elasmo.engine.logprobs import TokenLogprobs
from elasmo.engine.sequence import Sequence as Request
from elasmo.model.encoded import Encoded
from elasmo.model.processor import audio_tokens

LAYOUT = "layers of [key|value, tokens, kv_heads, head_dim]"


class KVMismatchError(ValueError):
    """KV of another model, layout or prompt, or damaged on the way; decoding on it is refused."""


@dataclass(frozen=True)
class KVEnvelope:
    """What a KV cache is.

    Attributes:
        model_hash, processor_hash: of the model that made it.
        dtype: of the values, `float32` or `bfloat16` (carried as its bits in uint16).
        layout: order of dimensions.
        tokens: prompt tokens it covers.
        media_digests: `kind@first token:digest` of the media in the prompt.
        latents: rows of its last image or clip that cross-attention blocks look at; 0 when there are none.
        first_token: the token sampled from the prompt.
        seed: of the request; later tokens are drawn from it.
        checksum: CRC-32 of the bytes.
    """

    model_hash: str
    processor_hash: str
    dtype: str
    layout: str
    layers: int
    kv_heads: int
    head_dim: int
    tokens: int
    media_digests: tuple[str, ...]
    latents: int
    first_token: int
    seed: int
    checksum: int


@dataclass(frozen=True)
class KVCachePayload:
    """Envelope and values, pickled without a copy.

    Attributes:
        layers: one array a layer, [2, tokens, kv_heads, head_dim].
        latents: [latents, hidden], what every later token looks at by cross-attention.
        first_logprobs, prompt_logprobs: of the first token and of the prompt's, where the request asked for them.
        cached_tokens: of the prompt, how many the producer's prefix cache held.
    """

    envelope: KVEnvelope
    layers: tuple[NDArray[Any], ...]
    latents: NDArray[Any]
    first_logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    cached_tokens: int = 0


def export(
    identity: Mapping[str, Any],
    prompt: Encoded,
    model: ModelConfig,
    layers: Sequence[Tensor],
    latents: Tensor,
    request: Request,
) -> KVCachePayload:
    """The KV of a prompt whose first token is sampled.

    Args:
        identity: what the envelope says of the model.
        layers: one tensor a layer, [2, tokens, kv_heads, head_dim].
        latents: [latents, hidden].
        request: its sequence.
    """
    arrays = tuple(to_array(layer) for layer in layers)
    rows = to_array(latents)
    envelope = KVEnvelope(
        **identity,
        tokens=len(prompt.tokens),
        media_digests=media_digests(prompt, model),
        latents=len(rows),
        first_token=request.tokens[0],
        seed=request.params.seed,
        checksum=checksum((*arrays, rows)),
    )
    return KVCachePayload(envelope, arrays, rows, request.logprobs, request.prompt_logprobs, request.cached)


def verify(envelope: KVEnvelope, **expected: Any) -> None:
    """Compares fields of an envelope.

    Raises:
        KVMismatchError: names the first field that differs, what was wanted and what came.
    """
    for field, wanted in expected.items():
        got = getattr(envelope, field)
        if got != wanted:
            raise KVMismatchError(f"The KV cache has {field} {got!r}, this replica needs {wanted!r}; prefill again.")


def verify_values(payload: KVCachePayload) -> None:
    """Checks that the arrays are whole and are the ones the envelope was written for.

    Raises:
        KVMismatchError: a layer is missing, has another shape, or bytes changed.
    """
    envelope = payload.envelope
    shape = (2, envelope.tokens, envelope.kv_heads, envelope.head_dim)
    if len(payload.layers) != envelope.layers or any(layer.shape != shape for layer in payload.layers):
        raise KVMismatchError(f"The KV cache is not {envelope.layers} layers of {shape}; prefill again.")
    if len(payload.latents) != envelope.latents:
        raise KVMismatchError(
            f"The KV cache has {len(payload.latents)} latents instead of {envelope.latents}; prefill again."
        )
    if checksum((*payload.layers, payload.latents)) != envelope.checksum:
        raise KVMismatchError("The KV cache differs from its checksum; prefill again.")


def checksum(arrays: Sequence[NDArray[Any]]) -> int:
    """CRC-32 of the values, array after array."""
    value = 0
    for array in arrays:
        # An empty array's memory can't be cast.
        value = zlib.crc32(np.ascontiguousarray(array).data.cast("B"), value) if array.size else value
    return value


def to_array(values: Tensor) -> NDArray[Any]:
    """A tensor as a contiguous array; bfloat16, which numpy lacks, as its bits in uint16."""
    host = values.detach().cpu().contiguous()
    array: NDArray[Any] = host.view(torch.uint16).numpy() if host.dtype == torch.bfloat16 else host.numpy()
    return array


def to_tensor(values: NDArray[Any], dtype: torch.dtype) -> Tensor:
    """The tensor that `to_array` was given; shares the array's memory, which may be read-only."""
    with warnings.catch_warnings():
        # Arrays from the object store are read-only; they are copied into pages and never written.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if dtype == torch.bfloat16 else tensor


def media_digests(prompt: Encoded, model: ModelConfig) -> tuple[str, ...]:
    """Which media stand where in a prompt; the records of a prompt have one digest together."""
    images, clips, cells = (np.flatnonzero(prompt.tokens == token) for token in model.tokens.media)
    found: list[tuple[str, int, bytes]] = []
    for number, image in enumerate(prompt.images):
        found.append(("image", images[number * len(images) // len(prompt.images)], image.tobytes()))
    start = 0
    for clip in prompt.audio:
        assert model.audio is not None  # a prompt with a clip was encoded for a model that takes clips
        found.append(("audio", clips[start], clip.tobytes()))
        start += 1 if model.attends else audio_tokens(len(clip), model.audio)
    if len(cells):
        names = ("cell_fields", "cell_values", "cell_categories", "cell_details", "cell_detail_of")
        parts: list[NDArray[Any]] = [getattr(prompt, name) for name in names]
        found.append(("table", cells[0], b"".join(part.tobytes() for part in parts)))
    return tuple(f"{kind}@{at}:{hashlib.blake2b(data, digest_size=16).hexdigest()}" for kind, at, data in found)
