"""The image tower against convolutions written out; images never influence one another."""

from __future__ import annotations

import math

import numpy as np
import torch

from elasmo.config import VisionConfig
from elasmo.model.vision import VisionTower

CONFIG = VisionConfig(image_size=8, channels=3, patch=4, stem=5, hidden=12, layers=2, heads=3, ffn=16)


def tower(config: VisionConfig = CONFIG, out: int = 7) -> VisionTower:
    built = VisionTower(config, out)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return built


def images(count: int, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 8, 8, channels), dtype=torch.uint8, generator=generator)


@torch.no_grad()
def test_front_end_equals_convolutions_written_out() -> None:
    """Blocks and norm are made the identity, so what is left is pixels, stem, patches and positions."""
    model = tower(out=CONFIG.hidden)
    model.blocks = torch.nn.ModuleList()
    model.norm, model.projector = torch.nn.Identity(), torch.nn.Identity()  # type: ignore[assignment]
    (image,) = images(1).numpy()

    def same(x: np.ndarray, layer: torch.nn.Conv2d) -> np.ndarray:
        """3x3 convolution of [height, width, channels] with zeros around, then GELU."""
        padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
        weight, bias = layer.weight.numpy(), layer.bias.numpy()
        out = np.zeros((*x.shape[:2], len(bias)))
        for row, column in np.ndindex(x.shape[:2]):
            window = padded[row : row + 3, column : column + 3].transpose(2, 0, 1)
            out[row, column] = (weight * window).sum((1, 2, 3)) + bias
        return out * 0.5 * (1 + np.vectorize(math.erf)(out / math.sqrt(2)))

    features = same(same(image / 127.5 - 1, model.conv1), model.conv2)
    weight, bias = model.patch.weight.numpy(), model.patch.bias.numpy()
    wanted = []
    for row in (0, 4):
        for column in (0, 4):
            window = features[row : row + 4, column : column + 4].transpose(2, 0, 1)
            wanted.append((weight * window).sum((1, 2, 3)) + bias)
    got = model(torch.from_numpy(image)[None])[0].numpy()
    assert np.abs(got - (np.stack(wanted) + model.position.numpy())).max() < 1e-4


@torch.no_grad()
def test_an_image_is_embedded_alike_alone_and_among_others() -> None:
    model, several = tower(), images(3)
    together = model(several)
    assert together.shape == (3, CONFIG.tokens, 7)
    assert torch.allclose(together[1:2], model(several[1:2]), atol=1e-5)


@torch.no_grad()
def test_gray_images_use_one_channel() -> None:
    config = CONFIG.model_copy(update={"channels": 1})
    assert tower(config)(images(2, channels=1)).shape == (2, 4, 7)
