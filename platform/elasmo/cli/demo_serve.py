"""The demo's serving: the published model behind HTTP, asked about held-out samples with the ordinary openai client."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from elasmo.config import Config
from elasmo.data.gold import GoldRow
from elasmo.data.gold_mixture import GoldMixture
from elasmo.engine.sampling import SamplingParams
from elasmo.engine.torch_engine import TorchEngine
from elasmo.model import published
from elasmo.model.encoded import Encoded
from elasmo.model.sample import Audio, Image, Segment, Text

CLIENTS = 8
STREAMED_OF_EACH = 8
"""Rows of each modality that are asked one at a time, streamed and timed; they go into the report."""
COMPARED_PROMPTS = 12
ANSWER_TOKENS = 32


@dataclass(frozen=True)
class Answered:
    """One held-out row and what the endpoint said; times where it was asked alone, streamed."""

    row: GoldRow
    answer: str
    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def correct(self) -> bool:
        return normal(self.answer) == normal(self.row.answer)


def normal(text: str) -> str:
    """An answer without the differences that do not matter: case, outer blanks, a final full stop."""
    return text.strip().rstrip(".").casefold()


def ask_all(url: str, model: str, gold: GoldMixture, timeout_s: float) -> list[Answered]:
    """Asks every held-out row once: a few of each modality streamed and timed alone, the rest several at a time."""
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="not needed", timeout=timeout_s, max_retries=0)
    alone: list[int] = []
    rest: list[int] = []
    index = gold.index("heldout")
    for code in range(len(index.modalities)):
        rows = index.row_ids[index.modality == code].tolist()
        # Spread over the split, so that the streamed ones are not all of one voice or digit.
        chosen = set(rows[:: max(1, len(rows) // STREAMED_OF_EACH)][:STREAMED_OF_EACH])
        alone += [row for row in rows if row in chosen]
        rest += [row for row in rows if row not in chosen]
    _stream(client, model, gold.read(alone[:1])[0])  # the first request of a replica touches memory for the first time
    answers = [_stream(client, model, row) for row in gold.read(alone)]
    with ThreadPoolExecutor(CLIENTS) as threads:
        answers += threads.map(lambda row: _ask(client, model, row), gold.read(rest))
    return answers


def accuracy(answers: Sequence[Answered]) -> dict[str, float]:
    """Part of the rows of each modality that were answered exactly."""
    asked = Counter(answer.row.modality for answer in answers)
    right = Counter(answer.row.modality for answer in answers if answer.correct)
    return {name: right[name] / asked[name] for name in sorted(asked)}


def latency_ms(answers: Sequence[Answered]) -> dict[str, float | None]:
    """Median TTFT and TPOT of the rows that were streamed alone."""
    ttft = [answer.ttft_ms for answer in answers if answer.ttft_ms is not None]
    tpot = [answer.tpot_ms for answer in answers if answer.tpot_ms is not None]
    return {"ttft_ms": median(ttft) if ttft else None, "tpot_ms": median(tpot) if tpot else None}


def write_served(path: Path, answers: Sequence[Answered]) -> None:
    """The streamed answers with their media, for the report."""
    with path.open("w") as out:
        for answer in answers:
            if answer.ttft_ms is None:
                continue
            row = answer.row
            example: dict[str, Any] = {
                "modality": row.modality,
                "source": row.source,
                "question": row.question,
                "expected": row.answer,
                "answer": answer.answer,
                "correct": answer.correct,
                "ttft_ms": round(answer.ttft_ms, 2),
                "tpot_ms": None if answer.tpot_ms is None else round(answer.tpot_ms, 2),
            }
            if row.images:
                example["image_png_b64"] = base64.b64encode(row.images[0]).decode()
            if row.audio:
                example["audio_wav_b64"] = base64.b64encode(row.audio[0]).decode()
            if row.record is not None:
                example["record"] = dict(row.record)
            out.write(json.dumps(example) + "\n")


def pd_equals_single_engine(config: Config, gold: GoldMixture) -> bool:
    """Whether prefill and decode replicas give the very tokens of one engine in this process, greedy and sampled."""
    loaded = published.load(str(config.serve.published))
    engine = TorchEngine(loaded.model, loaded.own_processor().fingerprint(), loaded.model_hash, config.serve.engine)
    row_ids = gold.index("heldout").row_ids
    rows = gold.read(row_ids[:: max(1, len(row_ids) // COMPARED_PROMPTS)].tolist())
    cases = [
        (prompt_of(row.encoded), SamplingParams(ANSWER_TOKENS, temperature, 0.95, seed))
        for seed, row in enumerate(rows)
        for temperature in (0.0, 1.5)
    ]
    split = asyncio.run(_split(config, cases))
    return all(tokens == engine.generate(*case) for tokens, case in zip(split, cases, strict=True))


def prompt_of(sample: Encoded) -> Encoded:
    """A sample up to its answer."""
    end = int(np.flatnonzero(sample.loss_mask)[0])
    return replace(sample, tokens=sample.tokens[:end], loss_mask=sample.loss_mask[:end])


async def _split(config: Config, cases: Sequence[tuple[Encoded, SamplingParams]]) -> list[list[int]]:
    from ray import serve

    from elasmo.serve.deadline import Deadline
    from elasmo.serve.generation import Attempts, generate
    from elasmo.serve.launch import APP_NAME
    from elasmo.serve.pools import ReplicaPools

    pools = ReplicaPools(*(serve.get_deployment_handle(name, APP_NAME) for name in ("prefill", "decode")))

    async def run(prompt: Encoded, params: SamplingParams) -> list[int]:
        deadline = Deadline(config.serve.request_timeout_s)
        batches = generate(pools, prompt, params, deadline, config.serve.retries, Attempts())
        return [token async for batch in batches for token in batch.tokens]

    # All at once: they share decode steps, which must not change a token.
    return list(await asyncio.gather(*(run(prompt, params) for prompt, params in cases)))


def _messages(row: GoldRow) -> list[Any]:
    """The row's conversation up to the answer, in OpenAI's shape, its segments in their own order."""
    return [
        {"role": message.role, "content": [_part(segment) for segment in message.segments]}
        for message in row.messages[:-1]
    ]


def _part(segment: Segment) -> dict[str, Any]:
    if isinstance(segment, Text):
        return {"type": "text", "text": segment.text}
    if isinstance(segment, Image):
        url = f"data:image/png;base64,{base64.b64encode(segment.data).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}
    if isinstance(segment, Audio):
        return {
            "type": "input_audio",
            "input_audio": {"data": base64.b64encode(segment.data).decode(), "format": "wav"},
        }
    return {"type": "input_table", "record": dict(segment.record)}


def _ask(client: Any, model: str, row: GoldRow) -> Answered:
    answer = client.chat.completions.create(
        model=model, messages=_messages(row), max_tokens=ANSWER_TOKENS, temperature=0
    )
    return Answered(row, answer.choices[0].message.content or "")


def _stream(client: Any, model: str, row: GoldRow) -> Answered:
    began = time.perf_counter()
    stream = client.chat.completions.create(
        model=model,
        messages=_messages(row),
        max_tokens=ANSWER_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, first, tokens = "", None, 0
    for chunk in stream:
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
        if chunk.choices and chunk.choices[0].delta.content:
            first = first if first is not None else time.perf_counter()
            text += chunk.choices[0].delta.content
    ended = time.perf_counter()
    first = first if first is not None else ended
    tpot = (ended - first) * 1000 / (tokens - 1) if tokens > 1 else None
    return Answered(row, text, (first - began) * 1000, tpot)
