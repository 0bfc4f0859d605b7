"""Text survives the tokenizer unchanged, and no text becomes a control token."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from elasmo.model.tokenizer import ASSISTANT, END, PAD, SPECIAL_TOKENS, TABLE, prepare, train_tokenizer

TEXTS = ["What digit is this?", "Which number do you hear?", "seven", "the digit is seven", "héllo €"] * 4
TOKENIZER = train_tokenizer(TEXTS, 320)


@settings(deadline=None)
@given(st.text())
def test_any_text_round_trips(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text
    assert all(len(SPECIAL_TOKENS) <= token < TOKENIZER.get_vocab_size() for token in ids)


@settings(deadline=None)
@given(st.lists(st.sampled_from([*SPECIAL_TOKENS, "<|", "|>", "end", " ", "<|end", "|>x"]), max_size=8))
def test_text_that_spells_control_tokens_stays_text(parts: list[str]) -> None:
    text = "".join(parts)
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert not set(ids) & set(range(len(SPECIAL_TOKENS)))
    assert TOKENIZER.decode(ids) == text


def test_control_tokens_have_the_first_ids_in_order() -> None:
    assert [TOKENIZER.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(8))
    assert (PAD, END, ASSISTANT, TABLE) == (0, 1, 4, 7)


def test_training_is_a_function_of_the_texts() -> None:
    assert train_tokenizer(TEXTS, 320).to_str() == TOKENIZER.to_str()
    assert train_tokenizer(TEXTS[:3], 320).to_str() != TOKENIZER.to_str()


def test_frequent_words_become_few_tokens() -> None:
    text = "the digit is seven"
    assert len(TOKENIZER.encode(text, add_special_tokens=False).ids) < len(text) / 2


def test_a_tokenizer_read_from_its_json_needs_prepare_to_refuse_control_tokens() -> None:
    """The setting isn't part of tokenizer.json: without `prepare` a reader would let users inject control tokens."""
    raw = Tokenizer.from_str(TOKENIZER.to_str())
    assert END in raw.encode("<|end|>", add_special_tokens=False).ids
    assert END not in prepare(raw).encode("<|end|>", add_special_tokens=False).ids
