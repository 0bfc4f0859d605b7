"""FLOPs by formula against torch's counter over the real model, forward and backward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from elasmo.config import AudioConfig, DecoderConfig, LimitsConfig, LoraConfig, ModelConfig, MoEConfig, VisionConfig
from elasmo.measure.flops import Load, ModelFlops, Recompute
from elasmo.model import lora
from elasmo.model.batch import collate
from elasmo.model.encoded import Encoded
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.processor import Processor
from elasmo.model.sample import Audio, Image, Message, Segment, Table, Text
from elasmo.parallel.recompute import recompute_layer
from elasmo.train.freeze import freeze
from elasmo.train.meter import load_of, trained_parameters
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
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.set_grad_enabled(backward):
        logits = model(collate([sample]))
        if backward:
            logits.sum().backward()
    return float(counter.get_total_flops())


def load_with_all_logits(sample: Encoded) -> Load:
    load = load_of(sample)
    return replace(load, targets=load.tokens)


def masked_half(flops: ModelFlops, kind: str, tokens: int) -> float:
    """What the formula leaves out of the decoder's attention: a pair's FLOPs times the pairs above the diagonal."""
    one, two = (getattr(flops.by_part(Load(count, 0))["decoder"], kind) for count in (1, 2))
    return float(two - 2 * one) * tokens * (tokens - 1) / 2


def whole(flops: ModelFlops, sample: Encoded, kind: str) -> float:
    """The formula as torch would count it: all logits, and no use of the causal mask."""
    load = load_with_all_logits(sample)
    parts = flops.by_part(load).values()
    return sum(getattr(part, kind) for part in parts) + masked_half(flops, kind, load.tokens)


def of(model: MultimodalDecoder, **more: Any) -> ModelFlops:
    return ModelFlops(model.config, model.vocab_size, trained_parameters(model), **more)


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("config", [CONFIG, MOE, CLIP], ids=["ours", "experts", "clip"])
def test_forward_and_backward_are_what_torch_counts(config: ModelConfig, kind: str) -> None:
    model, processor = tiny_model(config=config)
    sample = encoded(processor, SAMPLES[kind])
    assert counted(model, sample) == whole(of(model), sample, "forward")
    assert counted(model, sample, backward=True) == whole(of(model), sample, "model")


@pytest.mark.parametrize("kind", ["image", "audio", "table"])
@pytest.mark.parametrize(
    "patterns",
    [
        ("*", "!*.projector"),  # LLaVA's first stage: nothing passes through the towers
        ("vision", "audio", "table"),
        ("vision", "audio", "table", "embed_tokens", "decoder.layers.0"),  # nothing passes through the first layer
        ("embed_tokens", "decoder"),
        ("*", "!decoder.norm", "!embed_tokens"),
        ("*", "!vision.blocks.0.fc2", "!audio.blocks.0.fc2", "!table.mix"),
        ("*", "!decoder.layers.1.mlp.down_proj"),
        ("*", "!decoder.layers.0.input_layernorm"),
    ],
    ids=lambda patterns: " ".join(patterns),
)
def test_what_is_frozen_counts_as_torch_does(patterns: tuple[str, ...], kind: str) -> None:
    model, processor = tiny_model()
    freeze(model, patterns)
    sample = encoded(processor, SAMPLES[kind])
    assert counted(model, sample, backward=True) == whole(of(model), sample, "model")


def test_a_projector_of_two_layers_spares_its_tower_the_backward_pass() -> None:
    model, processor = tiny_model(config=CLIP)
    freeze(model, ("*", "!*.projector"))
    sample = encoded(processor, SAMPLES["image"])
    assert counted(model, sample, backward=True) == whole(of(model), sample, "model")


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("gate_proj", "down_proj"), ("o_proj",)], ids=" ".join)
def test_adapters_count_as_the_products_that_they_are(targets: tuple[str, ...]) -> None:
    model, processor = tiny_model()
    adapters = LoraConfig(rank=3, targets=targets)
    lora.add_adapters(model, adapters, 0)
    freeze(model, lora.FROZEN)
    sample = encoded(processor, SAMPLES["text"])
    flops = of(model, lora=adapters)
    # Of the first layer's attention torch's plain operators skip the gradients that nothing asks for: of keys, whose
    # weights are frozen, or of all three. Fused kernels compute them together or not at all.
    decoder, tokens = CONFIG.decoder, len(sample.tokens)
    spared = 2 * tokens**2 * decoder.heads * decoder.head_size if "q_proj" in targets else 0
    assert counted(model, sample) == whole(flops, sample, "forward")
    assert counted(model, sample, backward=True) + spared == whole(flops, sample, "model")


def test_whisper_computes_a_position_that_is_no_part_of_the_clip() -> None:
    """The frames behind a clip, which its last position sees, make one more."""
    model, processor = tiny_model(config=WHISPER)
    sample = encoded(processor, SAMPLES["audio"])
    load = load_of(sample)
    longer = replace(load, frames=(load.frames[0] + 2,))
    clip, more = (of(model).by_part(item)["audio"] for item in (load, longer))
    for kind, backward in (("forward", False), ("model", True)):
        extra = counted(model, sample, backward) - whole(of(model), sample, kind)
        assert 0 < extra < getattr(more, kind) - getattr(clip, kind)


def test_cross_attention_is_what_torch_counts_but_for_the_row_of_no_medium() -> None:
    model, processor = tiny_model(config=ATTENDING)
    sample = encoded(processor, SAMPLES["image"])
    config, load = ATTENDING, load_of(sample)
    hidden, blocks = config.decoder.hidden, 1
    # The blocks' keys have one row more, of zeros, and every token scores all media of the batch.
    rows = load.images * config.cross_attention.latents
    extra = blocks * (4 * hidden**2 + 4 * load.tokens * (rows + 1 - config.cross_attention.latents) * hidden)
    assert counted(model, sample, backward=True) == whole(of(model), sample, "model") + 3 * extra
    model.requires_grad_(False)
    assert counted(model, sample) == whole(of(model), sample, "forward") + extra


@pytest.mark.parametrize("config", [CONFIG, MOE], ids=["dense", "experts"])
@pytest.mark.parametrize("how", ["none", "selective", "full"])
def test_what_is_recomputed_is_hardware_alone(how: Recompute, config: ModelConfig) -> None:
    """torch's checkpoints stop early: a dense layer's last product is not computed again, of experts it is."""
    model, processor = tiny_model(config=config)
    for layer in model.decoder.layers:
        recompute_layer(layer, how)  # type: ignore[arg-type]
    model.train()
    sample = encoded(processor, SAMPLES["text"])
    flops = of(model, recompute=how)
    assert counted(model, sample, backward=True) == whole(flops, sample, "hardware")
    assert flops.step([load_of(sample)])[0] == of(model).step([load_of(sample)])[1]


def test_a_large_dense_decoder_has_six_flops_a_weight_and_token() -> None:
    """Chowdhery et al. 2022, appendix B: 6 N + 12 L H Q T a token, whose causal half this leaves out."""
    decoder = DecoderConfig(hidden=4096, layers=32, heads=32, kv_heads=32, ffn=11_008, max_seq=4096)
    config = ModelConfig(decoder=decoder.model_copy(update={"tie_embeddings": False}), vision=None, audio=None)
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11_008) + 4096 * 32_000
    found, _ = ModelFlops(config, 32_000).step([Load(4096, 4096)])
    palm = 6 * weights + 12 * 32 * 32 * 128 * 4096 * (4097 / 4096) / 2
    assert found / 4096 == pytest.approx(palm, rel=1e-9)


def test_fields_of_the_tiny_table_are_two() -> None:
    assert load_of(encoded(tiny_model()[1], SAMPLES["table"])).cells == len(FIELDS)
