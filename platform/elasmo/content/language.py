"""The language of a text by py3langid, whose naive Bayes model of 139 languages comes with the package.

Chosen because it needs no download, draws no random number and gives a probability that short texts keep low:
"A cat." is `und` where langdetect is sure of Romanian.
"""

from __future__ import annotations

from functools import cache
from typing import Any

UNKNOWN = "und"
"""ISO 639-2 for undetermined."""
READ_CHARACTERS = 256
"""A text is judged by its head: some two hundred characters are enough to tell, and cost 0.1 ms."""


def language_of(text: str, confidence: float) -> str:
    """ISO 639 code of the language that `text` is most probably in, `und` where that is less probable than asked."""
    if not any(character.isalpha() for character in text[:READ_CHARACTERS]):
        return UNKNOWN
    language, probability = _identifier().classify(text[:READ_CHARACTERS])
    return str(language) if probability >= confidence else UNKNOWN


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
