"""The questions asked about pictures and voices. Which wording a row gets is a fixed hash of its key."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

Choice = TypeVar("Choice")

LANGUAGES = {
    "be": "Belarusian",
    "bg": "Bulgarian",
    "ca": "Catalan",
    "da": "Danish",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "lt": "Lithuanian",
    "ml": "Malayalam",
    "nl": "Dutch",
    "ro": "Romanian",
    "ru": "Russian",
}
SEE = (
    "What does the picture show? Answer in {language}.",
    "Describe the picture in {language}.",
    "Write a caption in {language}.",
)
HEAR = (
    "Write down what the voice says.",
    "What is said?",
    "Transcribe the recording.",
)
MATCH = (
    "Does the voice name this picture?",
    "Is this what the voice describes?",
    "Do the picture and the voice belong together?",
)


def see(key: str, language: str) -> str:
    """Asks for the caption of a picture in a language."""
    return pick(key, "see", SEE).format(language=LANGUAGES[language])


def hear(key: str) -> str:
    """Asks for what a voice says, in the language it speaks."""
    return pick(key, "hear", HEAR)


def match(key: str) -> str:
    """Asks whether a voice reads the caption of a picture; the answer is yes or no."""
    return pick(key, "match", MATCH)


def draw(key: str, purpose: str) -> int:
    """A number from 0 to 2**32 - 1 that depends on the key and the purpose only."""
    return int.from_bytes(hashlib.blake2b(f"{purpose}/{key}".encode(), digest_size=4).digest(), "big")


def pick(key: str, purpose: str, choices: Sequence[Choice]) -> Choice:
    """One of the choices, by the key."""
    return choices[draw(key, purpose) % len(choices)]
