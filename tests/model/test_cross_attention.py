"""Flamingo's fusion: a token sees the last medium before it in its sample, in padded and packed rows and in serving."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from elasmo.config import EngineConfig, LimitsConfig, ModelConfig
from elasmo.engine.kv import KVMismatchError
from elasmo.engine.sampling import SamplingParams
from elasmo.engine.torch_engine import TorchEngine
from elasmo.model.batch import collate, pack
from elasmo.model.cross_attention import last_medium
from elasmo.model.encoded import Encoded
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.resampler import PerceiverResampler
from elasmo.model.sample import Audio, Image, Message, Segment, Table, Text
from elasmo.model.tokenizer import AUDIO, END, IMAGE
from tests.engine.test_torch_engine import run, tokens, without_cache
from tests.serve.tiny import ATTENDING, CONFIG, FIELDS, png, tiny_model, wav

MODEL, PROCESSOR = tiny_model(config=ATTENDING)


def ask(*segments: Segment) -> Encoded:
    messages = [Message("user", segments), Message("assistant", (Text("seven"),))]
    return PROCESSOR.encode_chat(messages, LimitsConfig())


SAMPLES = [
    ask(Image(png()), Text("what digit is this?")),
    ask(Text("say"), Audio(wav(0.31)), Text("and"), Audio(wav(0.1))),
    ask(Text("no medium here")),
    ask(Table({"age": 3.5, "city": "Oslo"}), Text("which?")),
    ask(Image(png(16)), Text("a"), Image(png()), Text("b"), Audio(wav(0.2)), Table({"age": None}), Text("all")),
]


def test_an_image_or_clip_takes_one_token() -> None:
    every = np.concatenate([sample.tokens for sample in SAMPLES])
    assert int((every == IMAGE).sum()) == sum(len(sample.images) for sample in SAMPLES) == 3
    assert int((every == AUDIO).sum()) == sum(len(sample.audio) for sample in SAMPLES) == 3


def test_a_token_attends_to_the_last_medium_before_it_in_its_own_sample() -> None:
    """Written out by hand: images are numbered first, then clips; a new sample begins without one."""
    row = torch.tensor([[9, IMAGE, 9, AUDIO, 9, IMAGE, 9, 9, AUDIO, 9]])
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 0, 1, 2]])
    assert last_medium(row, positions, {IMAGE: 2, AUDIO: 2}).tolist() == [[0, 1, 1, 3, 3, 2, 2, 0, 4, 4]]


@torch.no_grad()
def test_a_sample_alone_equals_the_sample_padded_or_packed_with_others() -> None:
    padded = MODEL(collate(SAMPLES))
    packed = MODEL(pack(SAMPLES))[0].split([len(sample.tokens) for sample in SAMPLES])
    for row, sample in enumerate(SAMPLES):
        alone = MODEL(collate([sample]))[0]
        assert (alone - padded[row, : len(alone)]).abs().max() <= 1e-5
        assert (alone - packed[row]).abs().max() <= 1e-5


@torch.no_grad()
def test_only_tokens_after_a_medium_and_before_the_next_depend_on_its_latents_directly() -> None:
    """With one layer whose self-attention sees nothing, what a token scores depends on its own medium alone."""
    config = ATTENDING.model_copy(update={"decoder": CONFIG.decoder.model_copy(update={"layers": 1})})
    model = tiny_model(config=config)[0]
    torch.nn.init.zeros_(model.decoder.layers[0].self_attn.o_proj.weight)
    sample = SAMPLES[4]
    first, second = np.flatnonzero(sample.tokens == IMAGE)
    other = dataclasses.replace(sample, images=np.stack([255 - sample.images[0], sample.images[1]]))
    moved = (model(collate([sample])) - model(collate([other])))[0].abs().amax(dim=1) > 1e-6
    assert moved.nonzero().flatten().tolist() == list(range(first, second))


@torch.no_grad()
def test_text_without_media_runs_the_decoder_as_it_is() -> None:
    plain = MultimodalDecoder(CONFIG, PROCESSOR.vocab_size, FIELDS).eval()
    plain.load_state_dict({name: MODEL.state_dict()[name] for name in plain.state_dict()})
    assert torch.equal(MODEL(collate([SAMPLES[2]])), plain(collate([SAMPLES[2]])))


@torch.no_grad()
def test_closed_gates_leave_the_language_model_as_it_was() -> None:
    model = MultimodalDecoder(ATTENDING, PROCESSOR.vocab_size, FIELDS).eval()
    model.init_weights(0)
    dark = dataclasses.replace(SAMPLES[0], images=SAMPLES[0].images * 0)
    assert torch.equal(model(collate([SAMPLES[0]])), model(collate([dark])))
    assert not torch.allclose(MODEL(collate([SAMPLES[0]])), MODEL(collate([dark])), atol=1e-3)


@pytest.mark.parametrize("number", range(len(SAMPLES)))
def test_every_parameter_has_a_gradient_whatever_the_modalities(number: int) -> None:
    model = tiny_model(config=ATTENDING)[0]
    model.target_losses(collate([SAMPLES[number]]))[0].sum().backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]
    told = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    sees, hears = len(SAMPLES[number].images) > 0, len(SAMPLES[number].audio) > 0
    assert ("vision" in told, "audio" in told, "vision_resampler" in told) == (sees, hears, sees)


@torch.no_grad()
def test_a_resampler_ignores_padding() -> None:
    torch.manual_seed(0)
    resampler = PerceiverResampler(16, latents=3, layers=2, heads=2, ffn=24)
    torch.nn.init.normal_(resampler.latents)
    media = torch.randn(2, 7, 16)
    real = torch.arange(7) < torch.tensor([[7], [4]])
    found = resampler(media, real)
    assert found.shape == (2, 3, 16)
    assert torch.allclose(found[1], resampler(media[1:, :4], real[1:, :4])[0], atol=1e-6)
    assert not torch.allclose(found[1], resampler(media[1:], real[:1])[0], atol=1e-3)


def prompts() -> list[Encoded]:
    asked = [
        (Image(png()), Text("what digit is this?")),
        (Text("what?"),),
        (Image(png(16)), Text("zero"), Audio(wav(0.1)), Text("one two")),
        (Table({"age": 50, "city": "Oslo"}), Text("one")),
    ]
    return [PROCESSOR.encode_chat([Message("user", s)], LimitsConfig(), add_generation_prompt=True) for s in asked]


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_serving_apart_and_together_gives_the_tokens_of_recomputing_everything(temperature: float) -> None:
    params = SamplingParams(max_tokens=10, temperature=temperature, seed=3)
    pages = EngineConfig(block_size=4, blocks=120, max_batch=8)
    producer, consumer = (TorchEngine(MODEL, "processor", "model", pages) for _ in range(2))
    for number, encoded in enumerate(prompts()):
        payload = pickle.loads(pickle.dumps(producer.prefill(encoded, params), protocol=5))
        assert payload.envelope.latents == (3 if len(encoded.images) else 0)
        consumer.admit(str(number), payload, params)
    outputs = run(consumer)
    for number, encoded in enumerate(prompts()):
        wanted = without_cache(encoded, params, MODEL)
        assert tokens(outputs[str(number)]) == wanted and (len(wanted) == 10 or wanted[-1] == END)


def test_lost_or_changed_latents_are_refused() -> None:
    params = SamplingParams(max_tokens=4)
    built = TorchEngine(MODEL, "processor", "model", EngineConfig(block_size=4, blocks=120, max_batch=8))
    payload = built.prefill(prompts()[0], params)
    with pytest.raises(KVMismatchError, match="2 latents instead of 3"):
        built.admit("a", dataclasses.replace(payload, latents=payload.latents[:2]), params)
    with pytest.raises(KVMismatchError, match="checksum"):
        built.admit("a", dataclasses.replace(payload, latents=payload.latents + 1), params)


@pytest.mark.parametrize("spare", [1, -1])
def test_placeholders_that_do_not_fit_the_media_are_refused(spare: int) -> None:
    sample = SAMPLES[0]
    place = int(np.flatnonzero(sample.tokens == IMAGE)[0])
    changed = np.insert(sample.tokens, place, IMAGE) if spare > 0 else np.delete(sample.tokens, place)
    wrong = dataclasses.replace(sample, tokens=changed, loss_mask=np.zeros(len(changed), np.uint8))
    with pytest.raises(ValueError, match=rf"{1 + spare} placeholders <\|image\|> for 1 embeddings"):
        MODEL(collate([wrong]))


def test_heads_that_do_not_divide_are_refused() -> None:
    settings = ATTENDING.model_dump() | {"cross_attention": {"heads": 5}}
    with pytest.raises(ValueError, match=r"cross_attention\.heads=5 must divide decoder\.hidden=32"):
        ModelConfig.model_validate(settings)
