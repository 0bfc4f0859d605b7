"""KV travels without a copy, and what is damaged or meant for another model is refused by name."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from elasmo.config import LimitsConfig
from elasmo.engine.kv import (
    LAYOUT,
    KVCachePayload,
    KVEnvelope,
    KVMismatchError,
    checksum,
    media_digests,
    to_array,
    to_tensor,
    verify,
    verify_values,
)
from elasmo.model.sample import Audio, Image, Message, Table, Text
from elasmo.model.tokenizer import AUDIO, IMAGE
from tests.serve.tiny import CONFIG, png, tiny_model, wav


def payload() -> KVCachePayload:
    random = np.random.default_rng(0)
    layers = tuple(random.normal(size=(2, 5, 1, 8)).astype(np.float32) for _ in range(3))
    latents = random.normal(size=(2, 8)).astype(np.float32)
    envelope = KVEnvelope(
        "model", "processor", "float32", LAYOUT, 3, 1, 8, 5, (), 2, 42, 0, checksum((*layers, latents))
    )
    return KVCachePayload(envelope, layers, latents)


def test_arrays_are_pickled_out_of_band_without_a_copy() -> None:
    original = payload()
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(original, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 2000 and len(buffers) == 4
    back = pickle.loads(data, buffers=buffers)
    assert back.envelope == original.envelope
    assert all(np.shares_memory(a, b) for a, b in zip(back.layers, original.layers, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_survive_as_arrays(dtype: torch.dtype) -> None:
    values = torch.randn(2, 3, 1, 4, generator=torch.Generator().manual_seed(0)).to(dtype).transpose(1, 2)
    array = to_array(values)
    assert array.flags.c_contiguous
    array.flags.writeable = False  # as the object store hands it out
    back = to_tensor(array, dtype)
    assert back.dtype == dtype and torch.equal(back, values)
    assert back.data_ptr() == array.ctypes.data


def test_whole_values_pass() -> None:
    verify_values(payload())
    verify(payload().envelope, model_hash="model", tokens=5)


@pytest.mark.parametrize(
    "expected", [{"model_hash": "other"}, {"processor_hash": "x"}, {"dtype": "bfloat16"}, {"layers": 4}, {"seed": 9}]
)
def test_the_field_that_differs_is_named_with_both_values(expected: dict[str, object]) -> None:
    ((field, wanted),) = expected.items()
    got = getattr(payload().envelope, field)
    with pytest.raises(KVMismatchError) as refused:
        verify(payload().envelope, **expected)
    assert field in str(refused.value) and repr(wanted) in str(refused.value) and repr(got) in str(refused.value)


def test_a_flipped_bit_is_noticed() -> None:
    whole = payload()
    whole.layers[1].view(np.uint8).reshape(-1)[17] ^= 1
    with pytest.raises(KVMismatchError, match="checksum"):
        verify_values(whole)


def test_swapped_layers_are_noticed() -> None:
    whole = payload()
    with pytest.raises(KVMismatchError, match="checksum"):
        verify_values(dataclasses.replace(whole, layers=whole.layers[::-1]))


@pytest.mark.parametrize("cut", ["layer", "token"])
def test_partial_kv_is_refused(cut: str) -> None:
    whole = payload()
    layers = whole.layers[:2] if cut == "layer" else tuple(layer[:, :4] for layer in whole.layers)
    with pytest.raises(KVMismatchError, match="not 3 layers"):
        verify_values(dataclasses.replace(whole, layers=layers))


def test_media_digests_say_what_stands_where() -> None:
    processor = tiny_model()[1]

    def digests(image: bytes, seconds: float, age: float) -> tuple[str, ...]:
        segments = (Text("x"), Image(image), Audio(wav(seconds)), Table({"age": age}))
        return media_digests(processor.encode_chat([Message("user", segments)], LimitsConfig()), CONFIG)

    base = digests(png(8), 0.2, 1.0)
    assert [entry.split(":")[0].split("@")[0] for entry in base] == ["image", "audio", "table"]
    assert base == digests(png(8), 0.2, 1.0)
    for changed, other in enumerate((digests(png(16), 0.2, 1.0), digests(png(8), 0.3, 1.0), digests(png(8), 0.2, 2.0))):
        same = [a.split(":")[1] == b.split(":")[1] for a, b in zip(base, other, strict=True)]
        assert same == [place != changed for place in range(3)]
    assert media_digests(processor.encode_chat([Message("user", (Text("x"),))], LimitsConfig()), CONFIG) == ()


def test_every_image_and_clip_has_its_place_and_digest() -> None:
    processor = tiny_model()[1]
    segments = (Image(png(8)), Image(png(16)), Audio(wav(0.1)), Text("x"), Audio(wav(0.3)), Image(png(8)))
    encoded = processor.encode_chat([Message("user", segments)], LimitsConfig())
    found = [entry.replace("@", ":").split(":") for entry in media_digests(encoded, CONFIG)]
    clip = len(encoded.audio[0]) // 4 + (len(encoded.audio[0]) % 4 > 0)
    later = int(np.flatnonzero(encoded.tokens == AUDIO)[clip])
    last = int(np.flatnonzero(encoded.tokens == IMAGE)[8])
    assert [(kind, int(at)) for kind, at, _ in found] == [
        ("image", 1),
        ("image", 5),
        ("image", last),
        ("audio", 9),
        ("audio", later),
    ]
    assert found[0][2] == found[2][2] != found[1][2] and found[3][2] != found[4][2]
