"""The engine gives exactly the tokens of generating alone without any cache, split, batched, resumed or not."""

from __future__ import annotations

import dataclasses
import itertools
import pickle

import numpy as np
import pytest
import torch

from elasmo.config import EngineConfig, LimitsConfig
from elasmo.engine.contract import EngineFull, EngineRefused, StepOutput
from elasmo.engine.kv import KVCachePayload, KVMismatchError
from elasmo.engine.sampling import SamplingParams, sample
from elasmo.engine.torch_engine import TorchEngine
from elasmo.model.batch import collate
from elasmo.model.encoded import Encoded
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.sample import Audio, Image, Message, Segment, Table, Text
from elasmo.model.tokenizer import END, NEVER_GENERATED
from tests.serve.tiny import CONFIG, png, tiny_model, wav

MODEL, PROCESSOR = tiny_model()
PAGES = EngineConfig(block_size=4, blocks=120, max_batch=8)


def prompt(*segments: Segment) -> Encoded:
    return PROCESSOR.encode_chat([Message("user", segments)], LimitsConfig(), add_generation_prompt=True)


PROMPTS = [
    prompt(Text("what?")),
    prompt(Image(png()), Text("what digit is this?")),
    prompt(Audio(wav(0.3)), Text("which number do you hear?")),
    prompt(Table({"age": 50, "city": "Oslo"}), Text("one")),
    prompt(Image(png(16)), Audio(wav(0.1)), Text("zero one two three four five zero one two three")),
]
GREEDY = SamplingParams(max_tokens=9)
RANDOM = SamplingParams(max_tokens=12, temperature=1.2, top_p=0.95, seed=11)


def engine(config: EngineConfig = PAGES, model: MultimodalDecoder = MODEL) -> TorchEngine:
    return TorchEngine(model, "processor", "model", config)


@torch.no_grad()
def without_cache(encoded: Encoded, params: SamplingParams, model: MultimodalDecoder = MODEL) -> list[int]:
    """The oracle: the training forward pass over the whole sequence again for every token."""
    tokens: list[int] = []
    while len(tokens) < params.max_tokens and END not in tokens:
        longer = dataclasses.replace(
            encoded,
            tokens=np.concatenate([encoded.tokens, np.array(tokens, np.int32)]),
            loss_mask=np.zeros(len(encoded.tokens) + len(tokens), np.uint8),
        )
        logits = model(collate([longer]))[0, -1].numpy().copy()
        logits[NEVER_GENERATED] = -np.inf
        tokens.append(sample(logits, params, len(tokens)))
    return tokens


def run(built: TorchEngine, limit: int = 200) -> dict[str, list[StepOutput]]:
    """Steps until nothing runs, outputs by request."""
    outputs: dict[str, list[StepOutput]] = {}
    for _ in range(limit):
        if not built.stats().running and not built.stats().waiting:
            return outputs
        for output in built.step():
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError("the engine did not end")


def tokens(outputs: list[StepOutput]) -> list[int]:
    return [output.token for output in outputs]


@pytest.mark.parametrize("params", [GREEDY, RANDOM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("number", range(len(PROMPTS)))
def test_generation_equals_recomputing_everything(number: int, params: SamplingParams) -> None:
    assert engine().generate(PROMPTS[number], params) == without_cache(PROMPTS[number], params)


def test_prefill_and_decode_apart_equal_one_engine() -> None:
    producer, consumer = engine(), engine(EngineConfig(block_size=16, blocks=20))
    for number, encoded in enumerate(PROMPTS):
        payload = pickle.loads(pickle.dumps(producer.prefill(encoded, RANDOM), protocol=5))
        consumer.admit(str(number), payload, RANDOM)
    outputs = run(consumer)
    for number, encoded in enumerate(PROMPTS):
        assert tokens(outputs[str(number)]) == without_cache(encoded, RANDOM)
    assert producer.stats().free_blocks == PAGES.blocks  # prefill keeps nothing


def test_tokens_do_not_depend_on_who_else_is_in_the_batch() -> None:
    """Sequences join at different steps, one is aborted on the way; each equals itself alone."""
    built = engine()
    arrivals = {0: 0, 1: 0, 2: 2, 3: 3, 4: 7}
    params = {n: dataclasses.replace(RANDOM if n % 2 else GREEDY, seed=n, max_tokens=6 + n) for n in arrivals}
    outputs: dict[str, list[StepOutput]] = {}
    for step in range(60):
        for number, at in arrivals.items():
            if at == step:
                built.admit(str(number), built.prefill(PROMPTS[number], params[number]), params[number])
        if step == 4:
            built.abort("0")
        for output in built.step():
            outputs.setdefault(output.request_id, []).append(output)
    for number in arrivals:
        alone = without_cache(PROMPTS[number], params[number])
        got = tokens(outputs[str(number)])
        assert got == alone or (number == 0 and got == alone[: len(got)])
        assert [output.index for output in outputs[str(number)]] == list(range(len(got)))
    assert built.stats().free_blocks == PAGES.blocks


def test_the_first_token_comes_from_prefill_at_once() -> None:
    built = engine()
    payload = built.prefill(PROMPTS[1], GREEDY)
    built.admit("a", payload, GREEDY)
    assert built.stats().waiting == 1
    assert built.step() == [StepOutput("a", 0, payload.envelope.first_token, None)]
    assert built.stats().waiting == 0 and built.stats().running == 1
    assert payload.envelope.tokens == len(PROMPTS[1].tokens)
    assert payload.envelope.media_digests[0].startswith("image@1:")


@pytest.mark.parametrize("sent", range(1, 11))
def test_a_resumed_stream_goes_on_where_it_stopped(sent: int) -> None:
    """The same KV and the tokens already sent, on another engine, beside a stranger."""
    whole = without_cache(PROMPTS[2], RANDOM)
    assert len(whole) == RANDOM.max_tokens and len(set(whole)) > 3
    payload = engine().prefill(PROMPTS[2], RANDOM)
    other = engine()
    other.admit("stranger", other.prefill(PROMPTS[0], GREEDY), GREEDY)
    other.admit("resumed", payload, RANDOM, replay=whole[:sent])
    outputs = run(other)
    assert tokens(outputs["resumed"]) == whole[sent:]
    assert [output.index for output in outputs["resumed"]] == list(range(sent, len(whole)))
    assert tokens(outputs["stranger"]) == without_cache(PROMPTS[0], GREEDY)


def test_replayed_tokens_are_recomputed_as_they_were_sent_not_drawn_again() -> None:
    """A replay that greedy decoding would not have chosen: what follows depends on what was sent."""
    built = engine()
    payload = built.prefill(PROMPTS[0], GREEDY)
    first = payload.envelope.first_token
    second = 100 if without_cache(PROMPTS[0], GREEDY)[1] != 100 else 101
    built.admit("a", payload, GREEDY, replay=[first, second])
    longer = np.concatenate([PROMPTS[0].tokens, np.array([first, second], np.int32)])
    follows = without_cache(Encoded.of_tokens(longer, np.zeros(len(longer), np.uint8)), GREEDY)
    assert tokens(run(built)["a"]) == follows[: GREEDY.max_tokens - 2]


def test_the_end_token_stops_a_sequence_and_length_ends_it() -> None:
    """In a model that scores the end token high or low, some seeds draw it and some never do."""
    model = tiny_model()[0]
    with torch.no_grad():
        model.embed_tokens.weight[END] *= 4.0
    built = engine(EngineConfig(block_size=4, blocks=400, max_batch=40), model)
    for seed in range(40):
        params = SamplingParams(max_tokens=20, temperature=1.0, seed=seed)
        built.admit(str(seed), built.prefill(PROMPTS[0], params), params)
    finishes = []
    for outputs in run(built).values():
        assert all(output.finish is None for output in outputs[:-1])
        assert END not in tokens(outputs[:-1]) and not set(tokens(outputs)) & set(NEVER_GENERATED)
        last = outputs[-1]
        assert last.finish == ("stop" if last.token == END else "length")
        assert len(outputs) <= 20 and (last.finish == "stop" or len(outputs) == 20)
        finishes.append(last.finish)
    assert 5 < finishes.count("stop") < 35


def test_one_token_ends_with_the_first() -> None:
    params = SamplingParams(max_tokens=1)
    built = engine()
    payload = built.prefill(PROMPTS[0], params)
    built.admit("a", payload, params)
    assert built.step() == [StepOutput("a", 0, payload.envelope.first_token, "length")]
    assert built.stats().running == 0 and built.step() == []


def test_a_full_engine_refuses_for_now_and_takes_the_sequence_later() -> None:
    needed = -(-(len(PROMPTS[0].tokens) + GREEDY.max_tokens) // 4)
    built = engine(EngineConfig(block_size=4, blocks=2 * needed, max_batch=8))
    payload = built.prefill(PROMPTS[0], GREEDY)
    built.admit("a", payload, GREEDY)
    built.admit("b", payload, GREEDY)
    with pytest.raises(EngineFull, match=f"needs {needed} KV pages, 0 are free"):
        built.admit("c", payload, GREEDY)
    run(built)
    built.admit("c", payload, GREEDY)
    assert tokens(run(built)["c"]) == without_cache(PROMPTS[0], GREEDY)


def test_a_full_batch_refuses_for_now() -> None:
    built = engine(EngineConfig(block_size=4, blocks=100, max_batch=1))
    payload = built.prefill(PROMPTS[0], GREEDY)
    built.admit("a", payload, GREEDY)
    with pytest.raises(EngineFull, match="max_batch"):
        built.admit("b", payload, GREEDY)
    assert built.stats().running == 1


def test_abort_frees_pages_at_any_time_and_ignores_strangers() -> None:
    built = engine()
    payload = built.prefill(PROMPTS[1], GREEDY)
    for steps in range(4):
        built.admit("a", payload, GREEDY)
        assert built.stats().free_blocks < PAGES.blocks
        for _ in range(steps):
            built.step()
        built.abort("a")
        built.abort("a")
        built.abort("nobody")
        assert built.stats().free_blocks == PAGES.blocks and built.stats().running == 0
    assert built.step() == []


def test_a_request_id_runs_once() -> None:
    built = engine()
    payload = built.prefill(PROMPTS[0], GREEDY)
    built.admit("a", payload, GREEDY)
    with pytest.raises(ValueError, match="'a' is running already"):
        built.admit("a", payload, GREEDY)
    assert tokens(run(built)["a"]) == without_cache(PROMPTS[0], GREEDY)


def damaged(payload: KVCachePayload) -> KVCachePayload:
    layers = tuple(layer.copy() for layer in payload.layers)
    layers[0][0, 0, 0, 0] += 1
    return KVCachePayload(payload.envelope, layers, payload.latents)


def test_kv_of_another_model_or_request_or_damaged_is_refused_and_holds_no_page() -> None:
    built = engine()
    payload = built.prefill(PROMPTS[0], GREEDY)
    other_model = TorchEngine(MODEL, "processor", "another", PAGES)
    other_processor = TorchEngine(MODEL, "another", "model", PAGES)
    cases = [
        (other_model, payload, GREEDY, "model_hash 'model'"),
        (other_processor, payload, GREEDY, "processor_hash"),
        (built, payload, dataclasses.replace(GREEDY, seed=5), "seed"),
        (built, damaged(payload), GREEDY, "checksum"),
    ]
    for target, kv, params, says in cases:
        with pytest.raises(KVMismatchError, match=says):
            target.admit("a", kv, params)
        assert target.stats().free_blocks == PAGES.blocks and target.stats().running == 0


def test_what_never_fits_is_refused_with_the_numbers() -> None:
    limit = CONFIG.decoder.max_seq
    length = len(PROMPTS[0].tokens)
    with pytest.raises(EngineRefused, match=f"{length} tokens and max_tokens={limit} exceed {limit}"):
        engine().prefill(PROMPTS[0], SamplingParams(max_tokens=limit))
    small = engine(EngineConfig(block_size=4, blocks=2))
    payload = engine().prefill(PROMPTS[0], GREEDY)
    for refused in (
        lambda: small.prefill(PROMPTS[0], GREEDY),
        lambda: small.add("a", PROMPTS[0], GREEDY),
        lambda: small.admit("a", payload, GREEDY),
    ):
        with pytest.raises(EngineRefused, match="the engine has 2"):
            refused()


@pytest.mark.parametrize("replay", ["other first token", "finished by end", "finished by length"])
def test_a_replay_that_cannot_go_on_is_refused(replay: str) -> None:
    built = engine()
    payload = built.prefill(PROMPTS[0], GREEDY)
    first = payload.envelope.first_token
    sent = {
        "other first token": [first + 1],
        "finished by end": [first, END],
        "finished by length": [first] * GREEDY.max_tokens,
    }[replay]
    with pytest.raises(EngineRefused, match="replay"):
        built.admit("a", payload, GREEDY, replay=sent)
    assert built.stats().free_blocks == PAGES.blocks


def test_generating_beside_running_sequences_disturbs_neither() -> None:
    built = engine()
    built.admit("a", built.prefill(PROMPTS[3], RANDOM), RANDOM)
    before = [output for _ in range(3) for output in built.step()]
    assert built.generate(PROMPTS[1], GREEDY) == without_cache(PROMPTS[1], GREEDY)
    after = run(built)["a"]
    assert tokens([*before, *after]) == without_cache(PROMPTS[3], RANDOM)


def test_every_page_size_gives_the_same_tokens() -> None:
    wanted = without_cache(PROMPTS[4], RANDOM)
    for size in (1, 3, 16, 64):
        assert engine(EngineConfig(block_size=size, blocks=100)).generate(PROMPTS[4], RANDOM) == wanted


def test_what_others_left_in_the_pages_is_never_read() -> None:
    """Not even NaN, which masks do not stop: zero times NaN is NaN."""
    built = engine()
    built._runner.pages.fill_(torch.nan)
    for number in (1, 4):  # one page table is shorter than the other
        built.admit(str(number), built.prefill(PROMPTS[number], RANDOM), RANDOM)
    outputs = run(built)
    for number in (1, 4):
        assert tokens(outputs[str(number)]) == without_cache(PROMPTS[number], RANDOM)


def test_bfloat16_kv_travels_as_bits_and_decodes_like_one_engine() -> None:
    model = tiny_model()[0].to(torch.bfloat16)
    producer, consumer = engine(model=model), engine(model=model)
    for encoded, params in itertools.product(PROMPTS[:2], (GREEDY, RANDOM)):
        payload = producer.prefill(encoded, params)
        assert payload.envelope.dtype == "bfloat16" and payload.layers[0].dtype == np.uint16
        consumer.admit("a", payload, params)
        assert tokens(run(consumer)["a"]) == producer.generate(encoded, params)
    with pytest.raises(KVMismatchError, match="dtype 'bfloat16'"):
        engine().admit("a", producer.prefill(PROMPTS[0], GREEDY), GREEDY)


def test_generated_tokens_are_counted_without_replays() -> None:
    built = engine()
    whole = built.generate(PROMPTS[0], GREEDY)
    assert built.stats().tokens_generated == len(whole)
    built.admit("a", built.prefill(PROMPTS[0], GREEDY), GREEDY, replay=whole[:4])
    run(built)
    assert built.stats().tokens_generated == 2 * len(whole) - 4
