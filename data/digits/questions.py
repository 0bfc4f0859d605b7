"""The questions asked about scans, clips and records, and their answers. Which wording a row gets is a fixed hash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
Choice = TypeVar("Choice")

# The answer's style follows from the question: most want the figure, some the word, a few a sentence.
SEE_FIGURE = (
    "What digit is this?",
    "Which digit is written here?",
    "Read the figure.",
    "Read the digit.",
    "What is the number in the picture?",
    "Which number do you see?",
    "What does the scan show?",
    "Name the digit in the image.",
)
SEE_WORD = ("What digit is this, in a word?", "Write the digit you see as a word.")
SEE_SENTENCE = ("What digit is this? Answer in a sentence.",)
HEAR_FIGURE = (
    "What digit do you hear?",
    "Which digit is spoken?",
    "Which number is said?",
    "What is the number in the clip?",
    "Write down the digit you hear.",
    "What does the voice say?",
    "Name the digit in the recording.",
    "Which figure was that?",
)
HEAR_WORD = ("What digit do you hear, in a word?", "Write the digit you hear as a word.")
HEAR_SENTENCE = ("What digit do you hear? Answer in a sentence.",)
WHICH_TWO = (
    "Which digit is written and which is spoken?",
    "Read the picture, then the clip.",
    "What do you see and what do you hear?",
)
SAME = ("Do they match?", "Is the written digit the spoken one?", "Do the picture and the clip agree?")
# Wordings of a field share a word that no other field has: what is asked for is told by the question alone.
FIELDS = {
    "width": ("How many pixels wide is the ink?", "What is the inked width?", "How wide is the digit?"),
    "left_edge": ("In which column does the ink start?", "What is the first column?", "Which column is the first?"),
    "darkest_row": ("Which row holds the most ink?", "What is the darkest row?", "Which row is darkest?"),
    "holes": ("How many holes are there?", "What is the number of holes?", "Count the holes."),
    "weight": ("Is the stroke light, medium or bold?", "How heavy is the stroke?", "What is the stroke like?"),
    "heavier_side": ("Is the left or the right heavier?", "Is there more ink left or right?", "Left or right?"),
    "heavier_end": ("Is the top or the bottom heavier?", "Is there more ink at the top or bottom?", "Top or bottom?"),
}


def draw(key: str, purpose: str) -> int:
    """A number from 0 to 2**32 - 1 that depends on the key and the purpose only."""
    return int.from_bytes(hashlib.blake2b(f"{purpose}/{key}".encode(), digest_size=4).digest(), "big")


def pick(key: str, purpose: str, choices: Sequence[Choice]) -> Choice:
    """One of the choices."""
    return choices[draw(key, purpose) % len(choices)]


def see(key: str, digit: int) -> tuple[str, str]:
    """Question and answer about a scan."""
    return _styled(key, digit, SEE_FIGURE, SEE_WORD, SEE_SENTENCE, "This is {}.")


def hear(key: str, digit: int) -> tuple[str, str]:
    """Question and answer about a clip."""
    return _styled(key, digit, HEAR_FIGURE, HEAR_WORD, HEAR_SENTENCE, "I hear {}.")


def which_two(key: str, seen: int, heard: int) -> tuple[str, str]:
    """Question about a scan and a clip, answered "3 and 7"."""
    return pick(key, "wording", WHICH_TWO), f"{seen} and {heard}"


def same(key: str, seen: int, heard: int) -> tuple[str, str]:
    """Question about a scan and a clip, answered yes or no."""
    return pick(key, "wording", SAME), "yes" if seen == heard else "no"


def field(key: str, name: str, value: float | int | str | None) -> tuple[str, str]:
    """Question about one field of a record, answered with its value."""
    return pick(key, "wording", FIELDS[name]), str(value)


def _styled(
    key: str, digit: int, figure: Sequence[str], word: Sequence[str], sentence: Sequence[str], frame: str
) -> tuple[str, str]:
    style = draw(key, "style") % 100
    if style < 88:
        return pick(key, "wording", figure), str(digit)
    if style < 96:
        return pick(key, "wording", word), WORDS[digit]
    article = "an" if WORDS[digit] == "eight" else "a"
    return pick(key, "wording", sentence), frame.format(f"{article} {WORDS[digit]}")
