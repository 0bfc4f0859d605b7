"""Sampling fields reach the engine; logprobs, echo, grammars, embeddings and tokens come back in OpenAI's shapes."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
import torch

from elasmo.engine.sampling import SamplingParams
from elasmo.model.batch import collate
from elasmo.model.encoded import Encoded
from elasmo.model.sample import Message, Text
from tests.serve.endpoint import LIMITS, QUESTION, Endpoint
from tests.serve.test_routes import events

SCHEMA = {
    "type": "object",
    "properties": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}, "sure": {"type": "boolean"}},
    "required": ["digit", "sure"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "digit", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def endpoint() -> Endpoint:
    return Endpoint()


def post(endpoint: Endpoint, path: str, **fields: Any) -> httpx.Response:
    return endpoint.run(lambda client: client.post(path, json={"model": "tiny", **fields}))


def complete(endpoint: Endpoint, prompt: Any, **fields: Any) -> httpx.Response:
    return post(endpoint, "/v1/completions", prompt=prompt, seed=0, **fields)


def test_sampling_fields_are_the_engines(endpoint: Endpoint) -> None:
    fields = {"temperature": 0.7, "top_p": 0.9, "top_k": 30, "min_p": 0.01, "presence_penalty": 0.5}
    answer = endpoint.chat(max_tokens=12, frequency_penalty=-0.5, logit_bias={"40": 3, "41": -100}, **fields).json()
    prompt = endpoint.processor.encode_chat([Message("user", (Text(QUESTION),))], LIMITS, True)
    params = SamplingParams(12, **fields, frequency_penalty=-0.5, logit_bias=((40, 3.0), (41, -100.0)))
    wanted = endpoint.processor.decode(endpoint.pools.engine.generate(prompt, params))
    assert answer["choices"][0]["message"]["content"] == wanted


def test_a_bias_beyond_the_vocabulary_is_refused(endpoint: Endpoint) -> None:
    response = endpoint.chat(logit_bias={"99999": 1})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logit_bias")


def test_chat_logprobs_tell_text_bytes_and_alternatives(endpoint: Endpoint) -> None:
    answer = endpoint.chat(max_tokens=15, logprobs=True, top_logprobs=3).json()["choices"][0]
    content = answer["logprobs"]["content"]
    ended = answer["finish_reason"] == "stop"
    said = b"".join(bytes(entry["bytes"]) for entry in (content[:-1] if ended else content))
    assert said.decode("utf-8", "replace") == answer["message"]["content"]
    for entry in content:
        values = [other["logprob"] for other in entry["top_logprobs"]]
        assert len(values) == 3 and values == sorted(values, reverse=True) and entry["logprob"] <= values[0] + 1e-9
    streamed = events(endpoint.chat(max_tokens=15, logprobs=True, top_logprobs=3, stream=True))[:-1]
    assert [e for chunk in streamed for e in chunk["choices"][0]["logprobs"]["content"]] == content
    assert (
        endpoint.chat(max_tokens=3, logprobs=True).json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    )


@torch.no_grad()
def test_echo_scores_the_prompt_as_the_model_does(endpoint: Endpoint) -> None:
    """vllm-project/vllm#50792: log-probabilities of the prompt, with the prompt in the text; warm cache or cold."""
    text = "zero one two three four five"
    tokens = endpoint.processor.encode_text(text).tokens
    whole = endpoint.pools.engine.model(collate([Encoded.of_tokens(tokens, np.zeros(len(tokens), np.uint8))]))[0]
    wanted = whole.double().log_softmax(-1)
    for _ in range(2):
        answer = complete(endpoint, text, echo=True, logprobs=2, max_tokens=0).json()
        choice = answer["choices"][0]
        assert choice["text"] == text and choice["finish_reason"] == "length"
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (len(tokens), 0)
        told = choice["logprobs"]
        assert "".join(told["tokens"]) == text and told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
        for at in range(1, len(tokens)):
            assert told["token_logprobs"][at] == pytest.approx(float(wanted[at - 1, int(tokens[at])]), abs=1e-4)
            assert max(told["top_logprobs"][at].values()) == pytest.approx(float(wanted[at - 1].max()), abs=1e-4)
            assert text[told["text_offset"][at] :].startswith(told["tokens"][at])
    longer = complete(endpoint, text, echo=True, logprobs=0, max_tokens=5).json()["choices"][0]
    assert longer["text"].startswith(text) and len(longer["logprobs"]["tokens"]) > len(tokens)
    plain = complete(endpoint, text, max_tokens=5).json()["choices"][0]
    assert longer["text"] == text + plain["text"] and plain["logprobs"] is None


def test_several_prompts_of_text_or_tokens_are_answered_in_order(endpoint: Endpoint) -> None:
    tokens = endpoint.processor.encode_text("zero").tokens.tolist()
    singles = [complete(endpoint, prompt, max_tokens=6).json()["choices"][0]["text"] for prompt in ("zero", "one two")]
    answer = complete(endpoint, [tokens, "one two"], max_tokens=6, n=2).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [answer["choices"][at]["text"] for at in (0, 2)] == singles
    assert complete(endpoint, tokens, max_tokens=6).json()["choices"][0]["text"] == singles[0]
    chunks = events(complete(endpoint, "zero", max_tokens=6, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-2]) == singles[0]
    assert (chunks[-1], chunks[-2]["choices"], chunks[-2]["usage"]["completion_tokens"]) == ("[DONE]", [], 6)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": ""}, "prompt[0]"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": [[99999]]}, "prompt[0]"),
        ("/v1/completions", {"prompt": [5]}, "prompt[0]"),  # an image's place
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 5000}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "best_of": 3}, "best_of"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/v1/completions", {"prompt": "a", "messages": []}, "messages"),
        ("/v1/completions", {"prompt": "a", "logprobs": True}, "logprobs"),
        ("/v1/embeddings", {"input": "a", "dimensions": 3}, "dimensions"),
        ("/v1/embeddings", {"input": [""]}, "input[0]"),
        ("/tokenize", {}, "prompt"),
        ("/detokenize", {"tokens": [99999]}, "tokens"),
    ],
)
def test_refusals_name_the_field(endpoint: Endpoint, path: str, fields: dict[str, Any], param: str) -> None:
    response = post(endpoint, path, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param) and param.split("[")[0] in error["message"]
    assert error["message"].endswith((".", "?"))


def test_a_schema_holds_and_survives_dead_replicas(endpoint: Endpoint) -> None:
    """A decode replica that dies in the middle is replaced by one that knows where in the schema the text is."""
    for seed in range(3):
        whole = endpoint.chat(response_format=FORMAT, max_tokens=60, seed=seed).json()["choices"][0]
        jsonschema.validate(json.loads(whole["message"]["content"]), SCHEMA)
        assert whole["finish_reason"] == "stop"
        endpoint.pools.die_after = [3, 0, 6]
        again = endpoint.chat(response_format=FORMAT, max_tokens=60, seed=seed).json()["choices"][0]
        assert again == whole
    anything = endpoint.chat(response_format={"type": "json_object"}, max_tokens=400, temperature=0.0).json()
    content = anything["choices"][0]["message"]["content"]
    assert content.startswith("{")


def test_a_schema_that_cannot_be_used_is_refused(endpoint: Endpoint) -> None:
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objekt"}}}
    response = endpoint.chat(response_format=wrong)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "response_format") and "objekt" in error["message"]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/d"}},
                "required": ["a"],
                "additionalProperties": False,
                "$defs": {"d": {"type": "integer", "minimum": 0, "maximum": 9}},
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]


def test_a_demanded_tool_is_called_with_arguments_of_its_schema(endpoint: Endpoint) -> None:
    named = {"type": "function", "function": {"name": "add"}}
    choice = endpoint.chat(tools=TOOLS, tool_choice=named, max_tokens=80).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["function"]["name"] == "add" and call["id"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), TOOLS[0]["function"]["parameters"])
    deltas = [
        chunk["choices"][0]["delta"]
        for chunk in events(endpoint.chat(tools=TOOLS, tool_choice=named, max_tokens=80, stream=True))[:-1]
    ]
    assert all("content" not in delta or not delta["content"] for delta in deltas)
    parts = [part for delta in deltas for part in delta.get("tool_calls", [])]
    assert parts[0]["function"]["name"] == "add" and all(part["index"] == 0 for part in parts)
    assert "".join(part["function"]["arguments"] for part in parts) == call["function"]["arguments"]
    any_tool = endpoint.chat(tools=TOOLS, tool_choice="required", max_tokens=80, seed=1).json()["choices"][0]
    assert any_tool["message"]["tool_calls"][0]["function"]["name"] in ("add", "now")


def test_a_model_that_may_call_may_also_talk(endpoint: Endpoint) -> None:
    talk = endpoint.chat(tools=TOOLS, max_tokens=12, logit_bias={str(at): -100 for at in _starts(endpoint, "{")}).json()
    assert talk["choices"][0]["message"]["content"] and "tool_calls" not in talk["choices"][0]["message"]
    asked = endpoint.chat(tools=TOOLS, tool_choice="none", max_tokens=12).json()
    assert asked["choices"][0]["message"]["content"] == endpoint.oracle(12)[0]


def _starts(endpoint: Endpoint, text: str) -> list[int]:
    size = endpoint.processor.vocab_size
    return [token for token in range(size) if endpoint.processor.decode([token]).startswith(text)]


def test_a_conversation_with_calls_and_their_results_is_read(endpoint: Endpoint) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
    ]
    tokens = post(endpoint, "/tokenize", messages=messages).json()["tokens"]
    text = post(endpoint, "/detokenize", tokens=tokens).json()["prompt"]
    assert text == QUESTION + '{"name":"now","arguments":{}}' + "noon"
    assert endpoint.chat(messages=messages, tools=TOOLS, max_tokens=3).status_code == 200


def test_embeddings_are_the_mean_of_the_last_hidden_states(endpoint: Endpoint) -> None:
    texts = ["zero one", "two"]
    answer = post(endpoint, "/v1/embeddings", input=texts).json()
    assert answer["usage"]["prompt_tokens"] == sum(len(endpoint.processor.encode_text(text).tokens) for text in texts)
    model = endpoint.pools.engine.model
    for text, entry in zip(texts, answer["data"], strict=True):
        encoded = endpoint.processor.encode_text(text)
        batch = collate([dataclasses.replace(encoded, loss_mask=np.zeros(len(encoded.tokens), np.uint8))])
        with torch.no_grad():
            hidden = model.decode(model.embed(batch.tokens, {}), batch.positions, batch.attention())[0].mean(dim=0)
        wanted = (hidden / hidden.norm()).tolist()
        assert entry["embedding"] == pytest.approx(wanted, abs=1e-5)
        assert math.isclose(sum(value * value for value in entry["embedding"]), 1.0, rel_tol=1e-4)
    packed = post(endpoint, "/v1/embeddings", input=texts, encoding_format="base64").json()["data"][1]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == pytest.approx(answer["data"][1]["embedding"])


def test_tokens_and_text_are_each_others_inverse(endpoint: Endpoint) -> None:
    text = "héllo <|image|> €"
    answer = post(endpoint, "/tokenize", prompt=text).json()
    assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == 512
    assert post(endpoint, "/detokenize", tokens=answer["tokens"]).json() == {"prompt": text}
    chat = post(endpoint, "/tokenize", messages=[{"role": "user", "content": QUESTION}]).json()["tokens"]
    wanted = endpoint.processor.encode_chat([Message("user", (Text(QUESTION),))], LIMITS, True)
    assert chat == wanted.tokens.tolist()


def test_cached_tokens_are_those_of_prefill_and_nothing_that_was_handed_over() -> None:
    """vllm-project/vllm#44607: prefill and decode apart, usage counts what prefill's cache held, not the KV moved."""
    endpoint = Endpoint()
    question = {"role": "user", "content": "zero one two three four five zero one two three four five"}
    for cached, fields in (
        (False, {}),
        (True, {"n": 3}),
        (True, {"stream": True, "stream_options": {"include_usage": True}}),
    ):
        response = endpoint.chat(max_tokens=4, messages=[question], **fields)
        usage = events(response)[-2]["usage"] if "stream" in fields else response.json()["usage"]
        wanted = (usage["prompt_tokens"] - 1) // 16 * 16 if cached else 0
        assert usage["prompt_tokens_details"]["cached_tokens"] == wanted
        assert (
            usage["prompt_tokens"] > 32 and usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        )
    assert endpoint.records[-1].cached_tokens > 0
