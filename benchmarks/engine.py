"""Decode and prefill rates of the torch engine against transformers' `generate`, same weights, same cores.

`python benchmarks/engine.py [--threads 1] [--wall] [--repeats 3] [--tokens 64]` prints the table of
`benchmarks/engine.md`. Rates are per CPU second of the process unless `--wall` is given: with one thread that is what
an idle machine takes, and a busy one disturbs it less. Systems take turns, so that a busy moment falls on all of them.
vLLM's CPU build joins as one more entry of `SYSTEMS` where it is installed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
import transformers

from elasmo.config import DecoderConfig, EngineConfig, ModelConfig
from elasmo.engine.sampling import SamplingParams
from elasmo.engine.torch_engine import TorchEngine
from elasmo.model.encoded import Encoded
from elasmo.model.multimodal import MultimodalDecoder

VOCAB, PROMPT = 32_000, 128
DECODER = DecoderConfig(hidden=768, layers=12, heads=12, kv_heads=4, ffn=2048, max_seq=1024)
BATCHES = (1, 8, 32)


Clock = Callable[[], float]


class System(Protocol):
    """Runs prompts to a fixed length."""

    def run(self, prompts: np.ndarray, tokens: int, clock: Clock) -> tuple[np.ndarray, float, float]:
        """Greedy tokens [batch, tokens] that follow prompts [batch, PROMPT].

        Also the seconds until every prompt had its first token, and from then to the end.
        """


class Elasmo:
    """The torch engine, all prompts in one step, as transformers has them."""

    def __init__(self, model: MultimodalDecoder) -> None:
        config = EngineConfig(
            blocks=1024, max_batch=max(BATCHES), prefix_cache=False, prefill_tokens=max(BATCHES) * PROMPT
        )
        self._engine = TorchEngine(model, "processor", "model", config)

    def run(self, prompts: np.ndarray, tokens: int, clock: Clock) -> tuple[np.ndarray, float, float]:
        began = clock()
        params = SamplingParams(tokens, ignore_end=True)
        for number, row in enumerate(prompts):
            prompt = Encoded.of_tokens(row.astype(np.int32), np.zeros(len(row), np.uint8))
            self._engine.add(str(number), prompt, params)
        answers: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
        first: float | None = None
        while min(map(len, answers.values())) < tokens:
            for output in self._engine.step():
                answers[output.request_id].append(output.token)
            if first is None and all(answers.values()):
                first = clock()
        ended = clock()
        assert first is not None
        return np.array(list(answers.values())), first - began, ended - first


class Transformers:
    """`LlamaForCausalLM.generate` with SDPA and its default cache."""

    def __init__(self, model: MultimodalDecoder) -> None:
        config = transformers.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=DECODER.hidden,
            intermediate_size=DECODER.ffn,
            num_hidden_layers=DECODER.layers,
            num_attention_heads=DECODER.heads,
            num_key_value_heads=DECODER.kv_heads,
            max_position_embeddings=DECODER.max_seq,
            rms_norm_eps=DECODER.norm_eps,
            rope_theta=DECODER.rope_theta,
            tie_word_embeddings=True,
        )
        self._model = transformers.LlamaForCausalLM(config).to(next(model.parameters()).dtype).eval()
        weights = {f"model.{name.removeprefix('decoder.')}": value for name, value in model.state_dict().items()}
        unread = self._model.load_state_dict(weights, strict=False)
        assert not unread.unexpected_keys and set(unread.missing_keys) <= {"lm_head.weight"}, unread
        # The engine never draws control tokens.
        self._never = [[token] for token in (*model.config.tokens.never, *model.config.tokens.media)]

    def run(self, prompts: np.ndarray, tokens: int, clock: Clock) -> tuple[np.ndarray, float, float]:
        ids, ticks = torch.as_tensor(prompts), [clock()]

        def tick(ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
            ticks.append(clock())
            return torch.zeros(len(ids), dtype=torch.bool)

        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                bad_words_ids=self._never,
                stopping_criteria=transformers.StoppingCriteriaList([tick]),
            )
        return np.asarray(out[:, PROMPT:]), ticks[1] - ticks[0], ticks[-1] - ticks[1]


SYSTEMS: dict[str, Callable[[MultimodalDecoder], System]] = {"elasmo": Elasmo, "transformers": Transformers}


def make_model(dtype: torch.dtype) -> MultimodalDecoder:
    """About 100 M parameters, random, the same each time."""
    model = MultimodalDecoder(ModelConfig(decoder=DECODER, vision=None, audio=None, table=None), VOCAB)
    model.init_weights(0)
    return model.to(dtype).eval()


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="wall-clock time, of a machine with nothing else to do")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.wall else time.process_time
    transformers.logging.set_verbosity_error()
    random = np.random.default_rng(0)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {options.threads} threads")
    for dtype in (torch.float32, torch.bfloat16):
        model = make_model(dtype)
        systems = {name: make(model) for name, make in SYSTEMS.items()}
        name = str(dtype).removeprefix("torch.")
        print(f"{name}: {sum(value.numel() for value in model.parameters()) / 1e6:.0f} M parameters")
        prompts = random.integers(100, VOCAB, (max(BATCHES), PROMPT))
        answers = {system: built.run(prompts[:2], 8, clock)[0] for system, built in systems.items()}
        for system, answer in answers.items():
            print(f"  {system} agrees with elasmo in {(answer == answers['elasmo']).mean():.0%} of 16 tokens")
        for batch in options.batches:
            decode: dict[str, list[float]] = {system: [] for system in systems}
            prefill: dict[str, list[float]] = {system: [] for system in systems}
            for _ in range(options.repeats):
                for system, built in systems.items():
                    _, first, rest = built.run(prompts[:batch], 1 + options.tokens, clock)
                    prefill[system].append(batch * PROMPT / first)
                    decode[system].append(batch * options.tokens / rest)
            for what, rates in (("decode", decode), ("prefill", prefill)):
                cells = [f"{spread(rates[system])}" for system in systems]
                ratio = statistics.median(rates["elasmo"]) / statistics.median(rates["transformers"])
                print(f"| {name} | {what} | {batch} | {' | '.join(cells)} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
