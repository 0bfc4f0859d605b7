"""Where tensors of a DeepSpeed checkpoint go: under our names, or under those of transformers."""

from __future__ import annotations

import pytest

from elasmo.config import Config, DecoderConfig, ModelConfig, MoEConfig
from elasmo.model.fragments import CheckpointError
from elasmo.model.hugging_face import full_shapes
from elasmo.train.checkpoint_import import places_in

DECODER = DecoderConfig(hidden=16, layers=2, heads=2, kv_heads=1, ffn=24, tie_embeddings=False)
MODEL = ModelConfig(decoder=DECODER, vision=None, audio=None, table=None)
SHAPES = full_shapes(MODEL, 33)
KNOWN = {
    "model.embed_tokens.weight": "embed_tokens.weight",
    "model.norm.weight": "decoder.norm.weight",
    "lm_head.weight": "lm_head.weight",
    "model.layers.1.self_attn.k_proj.weight": "decoder.layers.1.self_attn.k_proj.weight",
}


def test_our_own_names_are_taken_as_they_are() -> None:
    source = {f"module.{name}": shape for name, shape in SHAPES.items()}
    assert places_in(source, SHAPES) == {f"module.{name}": (name, None) for name in SHAPES}


def test_the_names_of_transformers_are_known() -> None:
    from elasmo.model.hugging_face_names import names

    source = {theirs: SHAPES[place.name] for theirs, place in names(MODEL).items()}
    places = places_in(source, SHAPES, Config(model=MODEL))
    assert {ours for ours, _ in places.values()} == set(SHAPES)
    for theirs, ours in KNOWN.items():
        assert places[theirs] == (ours, None)


def test_an_experts_matrix_is_a_box_of_the_stack() -> None:
    decoder = DECODER.model_copy(update={"moe": MoEConfig(experts=3, top_k=1, ffn=8)})
    model = MODEL.model_copy(update={"decoder": decoder})
    shapes = full_shapes(model, 33)
    from elasmo.model.hugging_face_names import names

    source = {
        theirs: shapes[place.name] if place.expert is None else shapes[place.name][1:]
        for theirs, place in names(model).items()
    }
    boxes = [box for _, box in places_in(source, shapes, Config(model=model)).values() if box is not None]
    assert {box[0] for box in boxes} == {(0, 1), (1, 2), (2, 3)}
    wrong = dict(source)
    expert = next(theirs for theirs, place in names(model).items() if place.expert is not None)
    wrong[expert] = (1, *source[expert])[:2]
    with pytest.raises(CheckpointError, match="the model needs"):
        places_in(wrong, shapes, Config(model=model))
