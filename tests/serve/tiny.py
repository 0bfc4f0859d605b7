"""A tiny random model with its processor: big enough to take every kind of media, small enough to build in a test."""

from __future__ import annotations

import io
import wave

import numpy as np
import torch
from PIL import Image as PILImage

from elasmo.config import AudioConfig, CrossAttentionConfig, DecoderConfig, ModelConfig, TableConfig, VisionConfig
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.processor import Processor, TableField
from elasmo.model.tokenizer import train_tokenizer

CONFIG = ModelConfig(
    decoder=DecoderConfig(hidden=32, layers=2, heads=2, kv_heads=1, ffn=64, max_seq=512),
    vision=VisionConfig(image_size=8, patch=4, hidden=16, layers=1, heads=2, ffn=32),
    audio=AudioConfig(sample_rate=16_000, n_mels=20, hidden=16, layers=1, heads=2, ffn=32, max_s=1.0),
    table=TableConfig(hidden=16, frequencies=4),
)
ATTENDING = CONFIG.model_copy(
    update={"fusion": "cross_attention", "cross_attention": CrossAttentionConfig(latents=3, heads=2)}
)
FIELDS = (TableField("age", "number", mean=40.0, std=10.0), TableField("city", "category", ("Bern", "Oslo")))


def tiny_model(seed: int = 0, config: ModelConfig = CONFIG) -> tuple[MultimodalDecoder, Processor]:
    """Random weights, the same for the same seed."""
    texts = ["what digit is this?", "which number do you hear?", "héllo wörld €", "zero one two three four five"]
    processor = Processor(train_tokenizer(texts, 300), config, FIELDS)
    model = MultimodalDecoder(config, processor.vocab_size, FIELDS)
    model.init_weights(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_gate"):
                parameter.fill_(0.7)  # open, so that media say something
    return model.eval(), processor


def png(side: int = 8) -> bytes:
    """A grey picture."""
    file = io.BytesIO()
    pixels = (np.arange(side * side, dtype=np.uint32) * 7 % 256).astype(np.uint8).reshape(side, side)
    PILImage.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def wav(seconds: float = 0.25, sample_rate: int = 16_000) -> bytes:
    """A tone."""
    file = io.BytesIO()
    time = np.arange(int(seconds * sample_rate)) / sample_rate
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(sample_rate)
        sound.writeframes((np.sin(time * 2 * np.pi * 440) * 12_000).astype("<i2").tobytes())
    return file.getvalue()
