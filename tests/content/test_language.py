"""Languages: whole sentences by their code, what is too short to tell as `und`."""

from __future__ import annotations

import pytest

from elasmo.content.language import UNKNOWN, language_of

SENTENCES = {
    "en": "The doctor measured the patient's blood pressure twice this morning.",
    "de": "Der Arzt hat heute morgen zweimal den Blutdruck gemessen.",
    "fr": "Le médecin a mesuré la tension deux fois ce matin.",
    "es": "El médico midió la presión arterial dos veces esta mañana.",
    "nl": "De dokter heeft vanochtend twee keer de bloeddruk gemeten.",
    "ru": "Врач дважды измерил давление этим утром.",
    "ja": "医者は今朝、血圧を二回測りました。",
    "zh": "医生今天早上量了两次血压。",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_sentence_is_told(language: str) -> None:
    assert language_of(SENTENCES[language], 0.5) == language


@pytest.mark.parametrize(
    "text", ["", "!!!", "12.5", "ok", "Yes", "7 mg", "A cat.", "scan-00012", "g-44", "hello world"]
)
def test_what_is_too_short_to_tell_is_undetermined(text: str) -> None:
    assert language_of(text, 0.5) == UNKNOWN


def test_the_head_of_a_long_text_decides_and_confidence_is_asked_for() -> None:
    assert language_of(SENTENCES["de"] * 40 + SENTENCES["ru"] * 9999, 0.5) == "de"
    assert language_of(SENTENCES["zh"], 0.9) == UNKNOWN
