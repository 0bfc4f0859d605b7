"""The whole model: media stand in their places, padding and neighbours change nothing, every parameter learns."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from elasmo.config import LimitsConfig
from elasmo.model.batch import collate
from elasmo.model.encoded import Encoded
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.sample import Audio, Image, Message, Segment, Table, Text
from elasmo.model.tokenizer import AUDIO, IMAGE, TABLE
from tests.serve.tiny import CONFIG, FIELDS, png, tiny_model, wav

MODEL, PROCESSOR = tiny_model()
NONE = torch.zeros(0, dtype=torch.int64)


def ask(*segments: Segment, answer: str = "seven") -> Encoded:
    return PROCESSOR.encode_chat([Message("user", segments), Message("assistant", (Text(answer),))], LimitsConfig())


SAMPLES = [
    ask(Image(png()), Text("what digit is this?")),
    ask(Text("say"), Audio(wav(0.31)), Audio(wav(0.1)), answer="zero one two three"),
    ask(Table({"age": 3.5, "city": "Oslo"}), Text("which?"), answer="a"),
    ask(Text("no medium here"), answer="four five"),
    ask(Image(png(16)), Image(png()), Audio(wav(0.2)), Table({"age": None}), Text("all"), answer="héllo"),
]


def flat(level: int) -> bytes:
    file = io.BytesIO()
    Pillow.new("L", (8, 8), level).save(file, "PNG")
    return file.getvalue()


def fresh(seed: int = 0) -> MultimodalDecoder:
    model = tiny_model(seed)[0]
    model.train()
    return model


@torch.no_grad()
def test_media_embeddings_stand_at_their_placeholders_in_order() -> None:
    batch = collate(SAMPLES)
    embedded = MODEL.embed(batch.tokens, MODEL.encode(batch))
    assert MODEL.vision and MODEL.audio and MODEL.table
    images, clips, cells = 0, 0, 0
    for row, sample in enumerate(SAMPLES):
        tokens = torch.from_numpy(sample.tokens.copy())
        pieces = {IMAGE: [], AUDIO: [], TABLE: []}  # type: dict[int, list[torch.Tensor]]
        for image in sample.images:
            pieces[IMAGE].append(MODEL.vision(torch.from_numpy(image.copy())[None])[0])
            images += 1
        for clip in sample.audio:
            mel = torch.from_numpy(clip.astype(np.float32))
            pieces[AUDIO].append(MODEL.audio(mel[None], torch.tensor([len(mel)])))
            clips += 1
        for field, value, category in zip(sample.cell_fields, sample.cell_values, sample.cell_categories, strict=True):
            cell = torch.tensor([int(field)]), torch.tensor([float(value)]), torch.tensor([int(category)])
            pieces[TABLE].append(MODEL.table(*cell, NONE, NONE))
            cells += 1
        wanted = MODEL.embed_tokens.weight[tokens.long()].clone()
        for token, values in pieces.items():
            if values:
                wanted[tokens == token] = torch.cat(values)
        assert torch.allclose(embedded[row, : len(tokens)], wanted, atol=1e-5)
    assert (images, clips, cells) == (3, 3, 4)


@torch.no_grad()
@pytest.mark.parametrize("row", range(len(SAMPLES)))
def test_a_sample_alone_equals_the_sample_in_a_padded_batch(row: int) -> None:
    alone = MODEL(collate([SAMPLES[row]]))[0]
    together = MODEL(collate(SAMPLES))[row, : len(alone)]
    assert (alone - together).abs().max() <= 1e-5


@torch.no_grad()
def test_losses_are_the_cross_entropy_of_the_full_logits() -> None:
    batch = collate(SAMPLES)
    losses, correct = MODEL.target_losses(batch)
    logits = MODEL(batch).double()
    assert losses.dtype == torch.float32 and correct.dtype == torch.bool
    for row, sample in enumerate(SAMPLES):
        for place in range(batch.tokens.shape[1]):
            if place + 1 < len(sample.tokens) and sample.loss_mask[place + 1]:
                target = int(sample.tokens[place + 1])
                scores = logits[row, place]
                wanted = float(scores.exp().sum().log() - scores[target])
                assert float(losses[row, place]) == pytest.approx(wanted, abs=1e-5)
                assert bool(correct[row, place]) == (int(scores.argmax()) == target)
            else:
                assert losses[row, place] == 0 and not correct[row, place]


@pytest.mark.parametrize(
    "samples",
    [SAMPLES[3:4], SAMPLES[:1], SAMPLES[1:2], SAMPLES[2:3], SAMPLES, [Encoded.empty()]],
    ids=["text", "image", "audio", "table", "all", "empty"],
)
def test_every_parameter_has_a_gradient_whatever_the_modalities(samples: Sequence[Encoded]) -> None:
    model = fresh()
    losses, _ = model.target_losses(collate(samples))
    losses.sum().backward()
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not missing
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters() if parameter.grad is not None)


def test_an_absent_medium_gives_its_tower_a_gradient_of_zero() -> None:
    model = fresh()
    model.target_losses(collate(SAMPLES[3:4]))[0].sum().backward()
    towers = [p for name, p in model.named_parameters() if name.split(".")[0] in ("vision", "audio", "table")]
    assert towers and all(not p.grad.any() for p in towers if p.grad is not None)


def test_a_batch_without_targets_has_a_loss_of_zero() -> None:
    losses, correct = fresh().target_losses(collate([Encoded.empty()]))
    assert losses.shape == correct.shape == (1, 2)
    assert float(losses.sum().detach()) == 0.0 and losses.requires_grad and not correct.any()


def test_gradients_of_micro_batches_add_up_to_those_of_the_batch() -> None:
    whole, parts = fresh(), fresh()
    whole.target_losses(collate(SAMPLES))[0].sum().backward()
    for part in (SAMPLES[:2], SAMPLES[2:4], SAMPLES[4:], [Encoded.empty()]):
        parts.target_losses(collate(part))[0].sum().backward()
    for (name, a), b in zip(whole.named_parameters(), parts.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        assert torch.allclose(a.grad, b.grad, atol=1e-5, rtol=1e-4), name


@pytest.mark.parametrize("spare", [1, -1])
def test_placeholders_that_do_not_fit_the_media_are_refused(spare: int) -> None:
    """One too few would otherwise shift every later medium in silence."""
    sample = SAMPLES[0]
    place = int(np.flatnonzero(sample.tokens == IMAGE)[0])
    tokens = np.insert(sample.tokens, place, IMAGE) if spare > 0 else np.delete(sample.tokens, place)
    wrong = dataclasses.replace(sample, tokens=tokens, loss_mask=np.zeros(len(tokens), np.uint8))
    with pytest.raises(ValueError, match=rf"{4 + spare} placeholders <\|image\|> for 4 embeddings"):
        MODEL(collate([wrong]))


@torch.no_grad()
def test_a_later_medium_does_not_change_earlier_scores() -> None:
    first = ask(Text("one two"), Image(png(8)))
    other = ask(Text("one two"), Image(png(24)))
    start = int(np.flatnonzero(first.tokens == IMAGE)[0])
    before, after = (MODEL(collate([sample]))[0] for sample in (first, other))
    assert torch.equal(before[:start], after[:start])
    assert not torch.allclose(before[start:], after[start:])


def test_weights_are_a_function_of_the_seed() -> None:
    one, same, other = (fresh(seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    drawn = [name for name in one if one[name].ndim > 1]
    assert all(not torch.equal(one[name], other[name]) for name in drawn)


def test_init_reaches_every_weight_and_keeps_scores_small() -> None:
    model = MultimodalDecoder(CONFIG, PROCESSOR.vocab_size, FIELDS)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, float("nan"))
    model.init_weights(0)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    with torch.no_grad():
        losses, _ = model.target_losses(collate(SAMPLES))
    per_token = float(losses.sum()) / sum(sample.costs().target for sample in SAMPLES)
    assert per_token < 1.5 * np.log(PROCESSOR.vocab_size)  # near a uniform guess


@torch.no_grad()
def test_bfloat16_follows_float32() -> None:
    low = tiny_model()[0].to(torch.bfloat16)
    losses, _ = low.target_losses(collate(SAMPLES))
    wanted, _ = MODEL.target_losses(collate(SAMPLES))
    assert losses.dtype == torch.float32
    assert torch.allclose(losses, wanted, atol=0.15)


@torch.no_grad()
def test_untied_output_weights_score_the_hidden_states() -> None:
    config = CONFIG.model_copy(update={"decoder": CONFIG.decoder.model_copy(update={"tie_embeddings": False})})
    model = tiny_model(config=config)[0]
    assert model.lm_head is not None
    hidden = torch.randn(3, CONFIG.decoder.hidden, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(model.logits(hidden), hidden @ model.lm_head.weight.T, atol=1e-6)
    assert torch.allclose(MODEL.logits(hidden), hidden @ MODEL.embed_tokens.weight.T, atol=1e-6)


def test_it_learns_to_tell_samples_apart() -> None:
    """Same question, same length: only the medium says which answer is right."""
    dark, light = png(8), flat(250)
    pairs = [ask(Image(dark), Text("?"), answer="one"), ask(Image(light), Text("?"), answer="two")]
    model, batch = fresh(), collate(pairs)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(25):
        optimizer.zero_grad()
        losses, correct = model.target_losses(batch)
        losses.mean().backward()
        optimizer.step()
    assert torch.equal(correct, batch.labels >= 0)
