"""FLOPs by formula against torch's counter over the real model, forward and backward."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from elasmo.config import AudioConfig, LimitsConfig, ModelConfig, MoEConfig, VisionConfig
from elasmo.measure.flops import Load, Training, forward, step
from elasmo.model.batch import collate
from elasmo.model.encoded import Encoded
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.processor import Processor
from elasmo.model.sample import Audio, Image, Message, Segment, Table, Text
from elasmo.train.meter import load_of
from tests.serve.tiny import ATTENDING, CONFIG, FIELDS, png, tiny_model, wav

MOE = CONFIG.model_copy(
    update={"decoder": CONFIG.decoder.model_copy(update={"moe": MoEConfig(experts=4, top_k=2, ffn=24, every=2)})}
)
CLIP = CONFIG.model_copy(
    update={
        "vision": VisionConfig(
            kind="clip", image_size=8, patch=2, hidden=16, layers=3, heads=2, ffn=40, feature_layer=-2, projector="mlp"
        ),
    }
)
WHISPER = CONFIG.model_copy(
    update={
        "audio": AudioConfig(
            kind="whisper", sample_rate=16_000, n_mels=20, hidden=16, layers=2, heads=2, ffn=40, max_s=1.0
        )
    }
)
SAMPLES: dict[str, tuple[Segment, ...]] = {
    "text": (Text("no medium here"),),
    "image": (Image(png()), Image(png(16)), Text("what digit is this?")),
    "audio": (Text("say"), Audio(wav(0.31))),
    "table": (Table({"age": 3.5, "city": "Oslo"}), Text("which?")),
}


def encoded(processor: Processor, segments: tuple[Segment, ...]) -> Encoded:
    return processor.encode_chat([Message("user", segments), Message("assistant", (Text("seven"),))], LimitsConfig())


def counted(model: MultimodalDecoder, sample: Encoded, backward: bool = False) -> float:
    """What torch counts, of a batch of one sample with a logit at every token."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        logits = model(collate([sample]))
        if backward:
            logits.sum().backward()
    return float(counter.get_total_flops())


def whole(config: ModelConfig, vocab: int, sample: Encoded) -> float:
    """The formula, with a logit at every token and the half of the decoder's attention that its mask leaves out."""
    load = load_of(sample)
    parts = forward(config, vocab, Load(load.tokens, load.tokens, load.images, load.frames, load.cells))
    causal = 2.0 * config.decoder.layers * load.tokens * (load.tokens - 1)
    causal *= config.decoder.heads * config.decoder.head_size
    return sum(part.weights + part.attention for part in parts.values()) + causal


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("config", [CONFIG, MOE, CLIP], ids=["ours", "experts", "clip"])
def test_forward_is_what_torch_counts(config: ModelConfig, kind: str) -> None:
    model, processor = tiny_model(config=config)
    sample = encoded(processor, SAMPLES[kind])
    with torch.no_grad():
        found = counted(model, sample)
    assert found == pytest.approx(whole(config, processor.vocab_size, sample), rel=1e-9)


def test_whisper_computes_a_position_that_is_no_part_of_the_clip() -> None:
    """The frames behind a clip, which its last position sees, make one more."""
    model, processor = tiny_model(config=WHISPER)
    sample = encoded(processor, SAMPLES["audio"])
    with torch.no_grad():
        found = counted(model, sample)
    load = load_of(sample)
    longer = replace(load, frames=(load.frames[0] + 2,))
    clip, more = (forward(WHISPER, processor.vocab_size, item)["audio"] for item in (load, longer))
    extra = found - whole(WHISPER, processor.vocab_size, sample)
    assert 0 < extra < more.weights + more.attention - clip.weights - clip.attention


def test_cross_attention_is_what_torch_counts_but_for_the_row_of_no_medium() -> None:
    model, processor = tiny_model(config=ATTENDING)
    model.requires_grad_(False)
    sample = encoded(processor, SAMPLES["image"])
    config, load = ATTENDING, load_of(sample)
    hidden, blocks = config.decoder.hidden, 1
    # The blocks' keys have one row more, of zeros, and every token scores all media of the batch.
    rows = load.images * config.cross_attention.latents
    extra = blocks * (4 * hidden**2 + 4 * load.tokens * (rows + 1 - config.cross_attention.latents) * hidden)
    with torch.no_grad():
        assert counted(model, sample) == pytest.approx(whole(config, processor.vocab_size, sample) + extra, rel=1e-9)


def test_training_is_three_times_forward_but_for_the_first_layers_inputs() -> None:
    model, processor = tiny_model()
    sample = encoded(processor, SAMPLES["text"])
    load = load_of(sample)
    useful, hardware = step(CONFIG, processor.vocab_size, [load])
    assert (
        useful
        == hardware
        == pytest.approx(
            3 * sum(part.weights + part.attention for part in forward(CONFIG, processor.vocab_size, load).values())
        )
    )
    # Torch's backward pass also has attention's masked half, and no gradient of token ids, which are not multiplied.
    assert counted(model, sample, backward=True) == pytest.approx(
        3 * whole(CONFIG, processor.vocab_size, sample), rel=0.01
    )


def test_frozen_parts_cost_what_is_still_computed_of_them() -> None:
    load = Load(tokens=50, targets=5, images=1)
    parts = forward(CONFIG, 300, load)
    vision, decoder, head = (parts[name] for name in ("vision", "decoder", "head"))
    tower = {"vision": 0.0, "audio": 0.0, "table": 0.0}
    useful, _ = step(CONFIG, 300, [load], Training(tower))
    assert useful == pytest.approx(
        vision.weights + vision.attention + 3 * (decoder.weights + decoder.attention + head.weights)
    )
    # Only the tower is trained: its gradient passes through the whole decoder, which has none of its own.
    useful, _ = step(CONFIG, 300, [load], Training({"decoder": 0.0, "head": 0.0}))
    assert useful == pytest.approx(
        3 * (vision.weights + vision.attention) + 2 * (decoder.weights + head.weights) + 3 * decoder.attention
    )
    nothing = dict.fromkeys(("vision", "audio", "table", "decoder", "head"), 0.0)
    assert step(CONFIG, 300, [load], Training(nothing))[0] == pytest.approx(
        sum(part.weights + part.attention for part in parts.values())
    )


def test_what_is_recomputed_is_hardware_alone() -> None:
    load = Load(tokens=50, targets=5)
    decoder = forward(CONFIG, 300, load)["decoder"]
    useful, _ = step(CONFIG, 300, [load])
    assert step(CONFIG, 300, [load], recompute="selective") == (useful, useful + decoder.attention)
    assert step(CONFIG, 300, [load], recompute="full") == (useful, useful + decoder.weights + decoder.attention)


def test_fields_of_the_tiny_table_are_two() -> None:
    assert load_of(encoded(tiny_model()[1], SAMPLES["table"])).cells == len(FIELDS)
