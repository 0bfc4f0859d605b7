"""The CLIP and SigLIP towers equal transformers' with random weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import CLIPVisionConfig, CLIPVisionModel, SiglipVisionConfig, SiglipVisionModel

from elasmo.config import VisionConfig
from elasmo.model.clip import ClipVisionTower
from elasmo.model.hugging_face_names import vision_names

SHAPE = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4}
IMAGES = torch.randint(0, 256, (3, 16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
OURS = {"image_size": 16, "channels": 3, "patch": 4, "hidden": 24, "ffn": 40, "layers": 3, "heads": 4}


def randomise(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(5)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3


def tower(config: VisionConfig, theirs: nn.Module) -> ClipVisionTower:
    """Our tower with their weights and no projection."""
    made = ClipVisionTower(config, config.hidden)
    state = theirs.state_dict()
    names = vision_names(config)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if not name.startswith("projector"):
                parameter.copy_(state[names[name].removeprefix("vision_model.")])
    made.projector = nn.Identity()  # type: ignore[assignment]
    return made


def pixels(mean: list[float], std: list[float]) -> Tensor:
    values = IMAGES.double() / 255
    return ((values - torch.tensor(mean)) / torch.tensor(std)).permute(0, 3, 1, 2).float()


@torch.no_grad()
@pytest.mark.parametrize(("layer", "select"), [(-2, "patch"), (-1, "full"), (-3, "patch")])
def test_clip(layer: int, select: str) -> None:
    theirs = CLIPVisionModel(CLIPVisionConfig(**SHAPE, image_size=16, patch_size=4))
    randomise(theirs)
    mean, std = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
    config = VisionConfig(
        kind="clip", **OURS, activation="quick_gelu", feature_layer=layer, select=select, mean=mean, std=std
    )
    wanted = theirs(pixels(mean, std), output_hidden_states=True).hidden_states[layer]
    got = tower(config, theirs)(IMAGES)
    assert got.shape[1] == config.tokens
    torch.testing.assert_close(got, wanted if select == "full" else wanted[:, 1:], rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("layer", [-1, -2])
def test_siglip(layer: int) -> None:
    theirs = SiglipVisionModel(SiglipVisionConfig(**SHAPE, image_size=16, patch_size=4))
    randomise(theirs)
    config = VisionConfig(kind="siglip", **OURS, activation="gelu_pytorch_tanh", norm_eps=1e-6, feature_layer=layer)
    wanted = theirs(pixels([0.5], [0.5]), output_hidden_states=True).hidden_states[layer]
    got = tower(config, theirs)(IMAGES)
    assert got.shape[1] == config.tokens
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_layers_after_the_used_one_are_not_built_and_every_parameter_learns() -> None:
    config = VisionConfig(kind="clip", **OURS, feature_layer=-2, projector="mlp")
    made = ClipVisionTower(config, 20)
    randomise(made)
    assert len(made.layers) == 2
    made(IMAGES).square().sum().backward()
    assert not [name for name, p in made.named_parameters() if p.grad is None or not p.grad.any()]
