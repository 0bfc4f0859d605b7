"""Text that must match a grammar: which tokens may come next, by llguidance, an Earley parser over token tries.

Chosen over xgrammar, which answers as fast but brings transformers, Triton and TVM along; llguidance is one wheel
without dependencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import llguidance
import numpy as np
from numpy.typing import NDArray


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or a token that it does not allow, in one sentence."""


@dataclass(frozen=True)
class GrammarSpec:
    """What a text must match.

    Attributes:
        kind: a JSON schema, or a grammar in llguidance's dialect of Lark.
        text: the schema as JSON, or the grammar.
    """

    kind: Literal["json_schema", "lark"]
    text: str


class Matcher:
    """One text on its way through a grammar. Its tokens are given to it again when a stream is resumed."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def allowed(self) -> NDArray[np.bool_]:
        """bool [vocab], the tokens that may come next; end tokens where the text may end."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        mask: NDArray[np.bool_] = np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(bool)
        if self._matcher.is_error() or not mask.any():
            raise GrammarError(f"The grammar allows no token to follow: {self._matcher.get_error() or 'it is over'}.")
        return mask

    def accept(self, tokens: Sequence[int]) -> None:
        """Moves on by tokens that came.

        Raises:
            GrammarError: they do not match.
        """
        for token in tokens:
            if self._matcher.is_stopped():
                return
            if not self._matcher.consume_token(token):
                raise GrammarError(f"Token {token} does not match the grammar: {self._matcher.get_error()}")


class GrammarCompiler:
    """Makes matchers for one tokenizer.

    Args:
        tokenizer: its `tokenizer.json`.
        vocab_size: of the model; at least that of the tokenizer; ids beyond it never come.
        ends: ids of tokens that end a text.
    """

    def __init__(self, tokenizer: str, vocab_size: int, ends: Sequence[int]) -> None:
        self._vocab_size = vocab_size
        self._tokenizer = llguidance.LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(ends))
        self._compiled = lru_cache(maxsize=64)(self._compile)

    def matcher(self, spec: GrammarSpec) -> Matcher:
        """A matcher at the beginning.

        Raises:
            GrammarError: the grammar cannot be compiled.
        """
        return Matcher(self._compiled(spec).deep_copy(), self._vocab_size)

    def check(self, spec: GrammarSpec) -> None:
        """Raises GrammarError when the grammar cannot be compiled."""
        self._compiled(spec)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for, perhaps a part of a character; of control tokens their names."""
        return bytes(self._tokenizer.decode_bytes([token]))

    def _compile(self, spec: GrammarSpec) -> llguidance.LLMatcher:
        if spec.kind == "json_schema":
            try:
                # No white space between the parts: a small model could go on with it until its tokens are spent.
                grammar = llguidance.LLMatcher.grammar_from_json_schema(
                    spec.text, overrides={"whitespace_flexible": False}
                )
            except ValueError as error:
                raise GrammarError(f"The JSON schema cannot be used: {error}.") from None
        else:
            grammar = llguidance.LLMatcher.grammar_from_lark(spec.text)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar)
        if matcher.is_error():
            first = str(matcher.get_error()).strip().splitlines()[0]
            raise GrammarError(
                f"The {'JSON schema' if spec.kind == 'json_schema' else 'grammar'} cannot be used: {first}"
            )
        return matcher
