"""Prompts run inside the engine: in chunks, on shared pages, preempted, aborted; tokens are those of running alone."""

from __future__ import annotations

import dataclasses
import json
import random

import numpy as np
import pytest
import torch

from elasmo.config import EngineConfig, LimitsConfig, MoEConfig
from elasmo.engine.contract import EngineRefused, StepOutput
from elasmo.engine.grammar import GrammarCompiler, GrammarError, GrammarSpec
from elasmo.engine.logprobs import TokenLogprobs
from elasmo.engine.sampling import SamplingParams
from elasmo.engine.torch_engine import TorchEngine
from elasmo.model.batch import collate
from elasmo.model.encoded import Encoded
from elasmo.model.sample import Audio, Image, Message, Table, Text
from tests.engine.test_torch_engine import GREEDY, MODEL, PROCESSOR, PROMPTS, RANDOM, prompt, run, tokens, without_cache
from tests.serve.tiny import ATTENDING, CONFIG, png, tiny_model, wav

TWO_IMAGES = prompt(Image(png()), Text("what"), Image(png(16)), Text("digit is this?"))
MIXED = prompt(Text("zero"), Image(png()), Audio(wav(0.2)), Text("one"), Table({"age": 3}), Image(png(4)), Text("two"))


def engine(**settings: object) -> TorchEngine:
    return TorchEngine(MODEL, "processor", "model", EngineConfig(**{"block_size": 4, "blocks": 120, **settings}))  # type: ignore[arg-type]


def text(length: int, seed: int) -> Encoded:
    numbers = np.random.default_rng(seed).integers(20, PROCESSOR.vocab_size, length).astype(np.int32)
    return Encoded.of_tokens(numbers, np.zeros(length, np.uint8))


@torch.no_grad()
def dense_logprobs(encoded: Encoded, model: torch.nn.Module = MODEL) -> torch.Tensor:
    """float64 [tokens, vocab], of the training forward pass."""
    return torch.as_tensor(model(collate([encoded]))[0]).double().log_softmax(-1)


@pytest.mark.parametrize("encoded", [TWO_IMAGES, MIXED], ids=["two images", "every medium"])
def test_chunk_borders_anywhere_change_nothing(encoded: Encoded) -> None:
    """vllm-project/vllm#18414: a chunk border inside an image of a prompt with two must not change what follows."""
    wanted = dense_logprobs(encoded)
    asks = dataclasses.replace(RANDOM, prompt_logprobs=0)
    answer = without_cache(encoded, RANDOM)
    for size in (*range(1, len(encoded.tokens) + 2), 512):
        built = engine(prefill_tokens=size)
        payload = built.prefill(encoded, asks)
        read = payload.prompt_logprobs
        assert read is not None and read[0] is None and len(read) == len(encoded.tokens)
        for at, entry in enumerate(read[1:], start=1):
            assert entry is not None and entry.token == encoded.tokens[at]
            assert entry.logprob == pytest.approx(float(wanted[at - 1, entry.token]), abs=1e-5)
        built.add("a", encoded, RANDOM)
        assert tokens(run(built)["a"]) == answer


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_chunks_of_a_model_that_attends_to_media_change_nothing(size: int) -> None:
    model, processor = tiny_model(config=ATTENDING)
    built = TorchEngine(model, "processor", "model", EngineConfig(block_size=4, blocks=120, prefill_tokens=size))
    for number, segments in enumerate(
        [(Text("one"), Image(png()), Text("two"), Audio(wav(0.2)), Text("three")), (Text("no medium"),)]
    ):
        encoded = processor.encode_chat([Message("user", segments)], LimitsConfig(), add_generation_prompt=True)
        built.add(str(number), encoded, RANDOM)
        wanted = without_cache(encoded, RANDOM, model)
        assert tokens(run(built)[str(number)]) == wanted


def test_prompts_run_between_the_tokens_of_others() -> None:
    """A long prompt arrives: streams that run get a token at each of its chunks."""
    built = engine(prefill_tokens=8)
    built.add("runs", PROMPTS[0], dataclasses.replace(GREEDY, max_tokens=30))
    while not built.step():
        pass
    long = text(60, 1)
    built.add("long", long, GREEDY)
    seen = []
    while True:
        outputs = built.step()
        seen.append([output.request_id for output in outputs])
        if "long" in seen[-1]:
            break
    assert len(seen) == -(-60 // 8) and all("runs" in ids for ids in seen)
    outputs = run(built)
    assert tokens(outputs["long"]) == without_cache(long, GREEDY)[1:]


def test_a_common_beginning_is_computed_once() -> None:
    built = engine()
    first = prompt(Image(png()), Text("what digit is this? zero one two three"))
    second = prompt(Image(png()), Text("what digit is this? zero one two four five"))
    other = prompt(Image(png(16)), Text("what digit is this? zero one two three"))
    assert (other.tokens == first.tokens).all()
    for name, encoded in (("first", first), ("second", second), ("other", other), ("again", first)):
        before = built.stats()
        built.add(name, encoded, RANDOM)
        assert tokens(run(built)[name]) == without_cache(encoded, RANDOM)
        cached = built.stats().prompt_tokens_cached - before.prompt_tokens_cached
        common = {"first": 0, "other": 0, "again": len(first.tokens) - 1}.get(name)
        if common is None:
            both = min(len(first.tokens), len(second.tokens))
            common = int(np.argmin(first.tokens[:both] == second.tokens[:both]))
        assert cached == common // 4 * 4, name
    assert built.stats().free_blocks == built.stats().total_blocks


def test_the_next_turn_of_a_conversation_finds_the_answer_in_the_cache() -> None:
    built = engine()
    answer = built.generate(PROMPTS[0], RANDOM)
    longer = Encoded.of_tokens(np.array([*PROMPTS[0].tokens, *answer, 33, 34], np.int32), np.zeros(2, np.uint8))
    before = built.stats().prompt_tokens_cached
    assert built.generate(longer, RANDOM) == without_cache(
        dataclasses.replace(longer, loss_mask=np.zeros(len(longer.tokens), np.uint8)), RANDOM
    )
    # All of the answer but its last token, which was drawn and never computed.
    assert built.stats().prompt_tokens_cached - before == (len(PROMPTS[0].tokens) + len(answer) - 1) // 4 * 4


def test_kv_handed_over_from_shared_pages_is_the_same_to_the_byte() -> None:
    built = engine()
    fresh, shared = built.prefill(PROMPTS[1], RANDOM), built.prefill(PROMPTS[1], RANDOM)
    assert built.stats().prompt_tokens_cached > 0
    assert shared.envelope.first_token == fresh.envelope.first_token
    at = (len(PROMPTS[1].tokens) - 1) // 4 * 4
    for one, two in zip(fresh.layers, shared.layers, strict=True):
        assert one[:, :at].tobytes() == two[:, :at].tobytes()
        assert np.allclose(one, two, atol=1e-6)
    whole = engine(prefix_cache=False)
    assert whole.prefill(PROMPTS[1], RANDOM).envelope == whole.prefill(PROMPTS[1], RANDOM).envelope
    assert whole.stats().prompt_tokens_cached == 0


def test_prompts_of_three_times_the_pool_all_finish() -> None:
    """LMCache/LMCache#1215: more prompt than KV must wait and be preempted, not hang."""
    built = engine(blocks=24, max_batch=8, prefill_tokens=16)
    prompts = {str(number): text(20 + number % 5, number) for number in range(13)}
    assert sum(len(encoded.tokens) for encoded in prompts.values()) > 2.9 * 24 * 4
    params = dataclasses.replace(RANDOM, max_tokens=30)
    for name, encoded in prompts.items():
        built.add(name, encoded, params)
    outputs = run(built, 2000)
    for name, encoded in prompts.items():
        assert tokens(outputs[name]) == without_cache(encoded, params)
        assert [output.index for output in outputs[name]] == list(range(len(outputs[name])))
    assert built.stats().preemptions > 0
    assert built.stats().free_blocks == 24


def test_five_hundred_requests_on_a_tiny_pool_leave_nothing() -> None:
    """LMCache/LMCache#1337: memory and page counts stay flat however many requests pass through."""
    built = engine(blocks=12, max_batch=4)
    params = SamplingParams(max_tokens=3, temperature=1.0, seed=1)
    for number in range(500):
        built.add(str(number), text(5 + number % 9, number), params)
    assert sum(len(outputs) for outputs in run(built, 5000).values()) > 1000
    stats = built.stats()
    assert (stats.free_blocks, stats.running, stats.waiting) == (12, 0, 0)
    assert built._runner.contiguous.tokens == 0 and not built._running and not built._waiting
    assert len(built.blocks._tables) == 0 and stats.cached_blocks <= 12


def test_aborting_nearly_everyone_frees_their_pages_at_once() -> None:
    """sgl-project/sglang#28651: aborting 89 % of 300 requests must not leave pages or places taken."""
    built = engine(blocks=60, max_batch=8, prefill_tokens=16)
    order = random.Random(3)
    prompts = {str(number): text(8 + number % 7, number) for number in range(300)}
    for name, encoded in prompts.items():
        built.add(name, encoded, GREEDY)
    outputs: dict[str, list[StepOutput]] = {}
    gone = set(order.sample(sorted(prompts), 267))
    leaving = sorted(gone)
    while built.stats().running or built.stats().waiting:
        for name in leaving[:9]:
            built.abort(name)
        leaving = leaving[9:]
        for output in built.step():
            outputs.setdefault(output.request_id, []).append(output)
    for name in sorted(set(prompts) - gone)[::6]:
        assert tokens(outputs[name]) == without_cache(prompts[name], GREEDY)
    assert set(prompts) - gone <= set(outputs)
    assert built.stats().free_blocks == 60


def test_a_resumed_prompt_is_computed_here_in_one_piece() -> None:
    whole = without_cache(PROMPTS[2], RANDOM)
    built = engine()
    built.add("a", PROMPTS[2], RANDOM, replay=whole[:5])
    assert built.step() == [StepOutput("a", 5, whole[5], None)]
    assert tokens(run(built)["a"]) == whole[6:]
    with pytest.raises(EngineRefused, match="finished already"):
        built.add("b", PROMPTS[2], RANDOM, replay=whole)


def test_logprobs_are_those_of_the_model_alone() -> None:
    """vllm-project/vllm#50792: of prompt tokens too, on a warm cache too, whatever is asked of sampling."""
    params = dataclasses.replace(
        RANDOM, logprobs=3, prompt_logprobs=2, logit_bias=((40, 5.0),), presence_penalty=0.5, frequency_penalty=0.5
    )
    encoded = PROMPTS[4]
    built = engine(prefill_tokens=7)
    reads = []
    for name in ("cold", "warm"):
        built.add(name, encoded, params)
        outputs = run(built)[name]
        answer = tokens(outputs)
        longer = Encoded.of_tokens(np.array([*encoded.tokens, *answer], np.int32), np.zeros(0, np.uint8))
        whole = dense_logprobs(
            dataclasses.replace(encoded, tokens=longer.tokens, loss_mask=longer.tokens.astype(np.uint8))
        )
        prompt_read = outputs[0].prompt_logprobs
        assert prompt_read is not None and prompt_read[0] is None
        assert all(output.prompt_logprobs is None for output in outputs[1:])
        entries = [*prompt_read[1:], *(output.logprobs for output in outputs)]
        for at, (entry, top) in enumerate(zip(entries, [2] * (len(prompt_read) - 1) + [3] * len(answer), strict=True)):
            assert isinstance(entry, TokenLogprobs) and entry.token == longer.tokens[at + 1]
            best = whole[at].topk(top)
            assert entry.logprob == pytest.approx(float(whole[at, entry.token]), abs=1e-4)
            assert [token for token, _ in entry.top] == best.indices.tolist()
            assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        reads.append(answer)
    assert reads[0] == reads[1]
    # The same through prefill and decode apart.
    payload = engine().prefill(encoded, params)
    other = engine()
    other.admit("a", payload, params)
    split = run(other)["a"]
    assert tokens(split) == reads[0] and all(output.logprobs is not None for output in split)
    assert split[0].prompt_logprobs is not None and len(split[0].prompt_logprobs) == len(encoded.tokens)


SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}, "city": {"enum": ["Bern", "Oslo"]}},
    "required": ["age", "city"],
    "additionalProperties": False,
}


def test_a_grammar_holds_whatever_the_model_wants_and_a_resumed_stream_goes_on_in_it() -> None:
    grammars = GrammarCompiler(PROCESSOR.tokenizer.to_str(), PROCESSOR.vocab_size, MODEL.config.tokens.end)

    def built() -> TorchEngine:
        return TorchEngine(MODEL, "processor", "model", EngineConfig(block_size=4, blocks=120), grammars)

    spec = GrammarSpec("json_schema", json.dumps(SCHEMA))
    for seed in range(4):
        params = SamplingParams(max_tokens=60, temperature=1.0, seed=seed, grammar=spec)
        whole = built().generate(PROMPTS[1], params)
        record = json.loads(PROCESSOR.decode(whole))
        assert set(record) == {"age", "city"} and 0 <= record["age"] <= 120 and record["city"] in ("Bern", "Oslo")
        payload = built().prefill(PROMPTS[1], params)
        for sent in (0, 1, 4, len(whole) - 1):
            other = built()
            other.admit("a", payload, params, replay=whole[:sent])
            other.add("b", PROMPTS[1], params, replay=whole[:sent])
            outputs = run(other)
            assert tokens(outputs["a"]) == tokens(outputs["b"]) == whole[sent:]
    with pytest.raises(EngineRefused, match="does not match the grammar"):
        built().add("c", PROMPTS[1], params, replay=[whole[0], 100, 100])
    with pytest.raises(EngineRefused, match="JSON schema cannot be used"):
        built().add("c", PROMPTS[1], dataclasses.replace(params, grammar=GrammarSpec("json_schema", '{"type": "x"}')))
    with pytest.raises(EngineRefused, match="without a tokenizer"):
        engine().add("c", PROMPTS[1], params)


def test_a_grammar_that_gives_up_fails_its_sequence_alone() -> None:
    grammars = GrammarCompiler(PROCESSOR.tokenizer.to_str(), PROCESSOR.vocab_size, MODEL.config.tokens.end)
    built = TorchEngine(MODEL, "processor", "model", EngineConfig(block_size=4, blocks=120), grammars)
    spec = GrammarSpec("json_schema", json.dumps(SCHEMA))
    built.add("fails", PROMPTS[1], SamplingParams(max_tokens=60, grammar=spec))
    built.add("goes on", PROMPTS[0], RANDOM)
    outputs = [output for _ in range(3) for output in built.step()]

    def give_up() -> None:
        raise GrammarError("The grammar is too complex.")

    built._running["fails"].matcher.allowed = give_up  # type: ignore[union-attr, method-assign, assignment]
    outputs += [output for outputs in run(built).values() for output in outputs]
    assert built.failures() == [("fails", "The grammar is too complex.")] and built.failures() == []
    assert [output.token for output in outputs if output.request_id == "goes on"] == without_cache(PROMPTS[0], RANDOM)
    assert sum(output.request_id == "fails" for output in outputs) == 3
    assert built.stats().free_blocks == 120


def test_experts_with_a_capacity_drop_no_token_for_the_sake_of_others() -> None:
    decoder = CONFIG.decoder.model_copy(update={"moe": MoEConfig(experts=4, top_k=1, ffn=32, capacity_factor=1.0)})
    model, _ = tiny_model(config=CONFIG.model_copy(update={"decoder": decoder}))
    built = TorchEngine(model, "processor", "model", EngineConfig(block_size=4, blocks=120, prefix_cache=False))
    alone = [built.generate(encoded, RANDOM) for encoded in PROMPTS]
    for number, encoded in enumerate(PROMPTS):
        built.add(str(number), encoded, RANDOM)
    outputs = run(built)
    assert [tokens(outputs[str(number)]) for number in range(len(PROMPTS))] == alone
