"""A byte-level BPE tokenizer trained on the dataset's text: any string round-trips, none becomes a control token."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, END, SYSTEM, USER, ASSISTANT, IMAGE, AUDIO, TABLE = range(8)
SPECIAL_TOKENS = (
    "<|pad|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|image|>",
    "<|audio|>",
    "<|table|>",
)
"""Control tokens; a token's id is its place here."""
NEVER_GENERATED = [PAD, SYSTEM, USER, ASSISTANT, IMAGE, AUDIO, TABLE]
"""Control tokens that mean nothing in an answer; engines leave them out of sampling."""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Trains byte-level BPE (Sennrich et al. 2016, on bytes); a function of the texts and their order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return prepare(tokenizer)


def prepare(tokenizer: Tokenizer) -> Tokenizer:
    """Makes text that spells a control token encode as text; call it on every tokenizer that was read from a file."""
    tokenizer.encode_special_tokens = True
    return tokenizer
