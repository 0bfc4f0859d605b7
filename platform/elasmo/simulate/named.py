"""A model as a person names it on the command line: a published shape, a config.json, or a config of Elasmo."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from elasmo.config import load
from elasmo.simulate.describe import from_config, from_hugging_face, known_model
from elasmo.simulate.model import Attention, FeedForward, Model, ModelError, Tower

VOCABULARY = 32_000
"""Tokens that a config of Elasmo is taken to have before data says how many."""


def named_model(text: str) -> Model:
    """The model that a name, the path of a config.json or of a YAML config means.

    Raises:
        ModelError: none of these, or a file that does not describe a model.
        ConfigError: a YAML config with a mistake.
    """
    path = Path(text)
    if path.suffix == ".json" or (path / "config.json").is_file():
        file = path if path.suffix == ".json" else path / "config.json"
        try:
            raw = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise ModelError(f"model={text} cannot be read as a config.json: {error}.") from None
        if not isinstance(raw, dict):
            raise ModelError(f"model={text} is JSON but no object; give a Hugging Face config.json.")
        return from_hugging_face(raw, name=file.parent.name or file.name)
    if path.suffix in (".yaml", ".yml"):
        return from_config(load(path).model, VOCABULARY, name=path.stem)
    found = re.fullmatch(r"llava-?(?:1\.5|v1\.5)?-?(7|13)b", text.strip().lower())
    return _llava(int(found[1])) if found else known_model(text)


def _llava(billions: int) -> Model:
    """LLaVA-1.5: Llama 2's shape, CLIP ViT-L/14 at 336 pixels up to its second last layer, two layers between.

    One image of 576 tokens a sequence; nothing is frozen but the tower, as in its fine-tuning (Liu et al. 2023).
    """
    language = known_model(f"Llama-2-{billions}B")
    hidden = 1024
    attention = Attention(16, 16, 64, 64, bias=True, out_bias=True)
    tower = Tower(
        "vision", hidden, 23, attention, FeedForward(4096, False, True), 577, 576,
        (hidden, language.hidden, language.hidden), hidden * (3 * 14 * 14 + 578), 3 * 14 * 14, 2 * hidden, frozen=True,
    )  # fmt: skip
    return replace(language, towers=(tower,), name=f"LLaVA-1.5-{billions}B")
