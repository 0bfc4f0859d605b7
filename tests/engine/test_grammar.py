"""What a grammar allows is what its schema says, whatever tokens the text falls into."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

from elasmo.engine.grammar import GrammarCompiler, GrammarError, GrammarSpec
from elasmo.model.tokenizer import END
from tests.serve.tiny import tiny_model

PROCESSOR = tiny_model()[1]
COMPILER = GrammarCompiler(PROCESSOR.tokenizer.to_str(), PROCESSOR.vocab_size, [END])
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "tags": {"type": "array", "items": {"enum": ["é", "€", "a"]}, "maxItems": 3},
        "score": {"anyOf": [{"type": "number", "multipleOf": 0.5, "maximum": 9}, {"type": "null"}]},
    },
    "required": ["name", "tags", "score"],
    "additionalProperties": False,
}
SPEC = GrammarSpec("json_schema", json.dumps(SCHEMA))


def test_random_walks_always_end_in_a_document_of_the_schema() -> None:
    for seed in range(20):
        random, matcher, tokens = np.random.default_rng(seed), COMPILER.matcher(SPEC), []
        while not tokens or tokens[-1] != END:
            allowed = matcher.allowed()
            assert len(allowed) == PROCESSOR.vocab_size
            tokens.append(END if allowed[END] else int(random.choice(np.flatnonzero(allowed))))
            matcher.accept([tokens[-1]])
            assert len(tokens) < 400
        jsonschema.validate(json.loads(PROCESSOR.decode(tokens)), SCHEMA)


def test_a_replayed_beginning_allows_what_the_first_run_allowed() -> None:
    text = '{"name":"ab","tags":["é"],"score":1.5}'
    tokens = PROCESSOR.tokenizer.encode(text).ids
    for at in range(len(tokens)):
        one, two = COMPILER.matcher(SPEC), COMPILER.matcher(SPEC)
        one.accept(tokens[:at])
        for token in tokens[:at]:
            two.accept([token])
        assert (one.allowed() == two.allowed()).all() and one.allowed()[tokens[at]]


def test_other_grammars_and_refusals() -> None:
    matcher = COMPILER.matcher(GrammarSpec("lark", 'start: "yes" | "no"'))
    starts = {PROCESSOR.decode([token])[:1] for token in np.flatnonzero(matcher.allowed())}
    assert starts == {"y", "n"}
    with pytest.raises(GrammarError, match="Token 33 does not match"):
        matcher.accept([33])
    for kind, wrong in (("json_schema", '{"type": "objekt"}'), ("lark", "start: foo")):
        with pytest.raises(GrammarError, match="cannot be used"):
            COMPILER.matcher(GrammarSpec(kind, wrong))  # type: ignore[arg-type]
