"""A published model becomes an engine of the configured precision that follows grammars of its own tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elasmo.config import EngineConfig, ServeConfig
from elasmo.engine.grammar import GrammarSpec
from elasmo.engine.sampling import SamplingParams
from elasmo.serve.load_engine import load_engine
from elasmo.serve.served_model import read_served_model
from tests.serve.test_served_model import folder  # noqa: F401


@pytest.mark.parametrize(("dtype", "bits"), [("float32", "float32"), ("bfloat16", "uint16")])
def test_the_engine_has_the_configured_precision_and_admission_counts_it(folder: Path, dtype: str, bits: str) -> None:  # noqa: F811
    config = EngineConfig.model_validate({"dtype": dtype})
    model, processor = read_served_model(folder, ServeConfig(engine=config))
    engine = load_engine(str(folder), config)
    spec = GrammarSpec("json_schema", '{"enum": ["yes", "no"]}')
    payload = engine.prefill(processor.encode_text("is it?"), SamplingParams(20, grammar=spec))
    assert payload.envelope.dtype == dtype and str(payload.layers[0].dtype) == bits
    assert sum(layer.nbytes for layer in payload.layers) == payload.envelope.tokens * model.kv_token_bytes
    answer = engine.generate(processor.encode_text("is it?"), SamplingParams(20, grammar=spec))
    assert json.loads(processor.decode(answer)) in ("yes", "no")
