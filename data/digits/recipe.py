"""The digits dataset: real scanned handwriting, synthetic speech, measured records, and the samples made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from elasmo.data.draft import Draft, Ref, Turn
from elasmo.sources.source import SilverRows

from . import handwriting, questions, speech

Rows = list[dict[str, Any]]
PAIRS = {"train": 900, "heldout": 80}
HELDOUT_IMAGES, HELDOUT_TABLES = 240, 120
PAIR_NUMBER = 1  # held-out pairs use this take of a voice, held-out clips the other one: no clip is asked about twice


def inputs() -> dict[str, str]:
    """Hashes of what lies outside this folder."""
    return {
        "scikit-learn digits.csv.gz": handwriting.fingerprint(),
        "espeak-ng library and data": speech.fingerprint(),
    }


def land() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every scan, its record, and every clip."""
    for scan in handwriting.scans():
        yield "scans", {"key": scan.key, "row": scan.row, "digit": scan.digit, "group": scan.group, "png": scan.png()}
        yield "records", {"key": f"record-{scan.row:04d}", "scan": scan.key, "record": handwriting.measure(scan.ink)}
    for take, wav in speech.clips():
        yield (
            "clips",
            {
                "key": take.key,
                "language": take.language,
                "voice": take.voice,
                "gender": take.gender,
                "take": take.number,
                "speed": take.speed,
                "pitch": take.pitch,
                "digit": take.digit,
                "wav": wav,
            },
        )


def samples(silver: SilverRows) -> Iterator[Draft]:
    """About 40 % image, 35 % audio, 15 % table and 10 % image + audio samples; fewer, once each, held out."""
    scans, clips, records = (_by_split(silver.rows(table)) for table in ("scans", "clips", "records"))
    for scan in scans["train"]:
        for number in range(2 + questions.draw(scan["key"], "asked") % 2):
            yield _see(scan, number)
    for scan in _some(scans["heldout"], HELDOUT_IMAGES):
        yield _see(scan, 0)
    for clip in clips["train"] + [clip for clip in clips["heldout"] if clip["take"] != PAIR_NUMBER]:
        yield _hear(clip)
    for record in records["train"] + _some(records["heldout"], HELDOUT_TABLES):
        yield _field(record)
    yield from _pairs("train", scans["train"], clips["train"])
    yield from _pairs("heldout", scans["heldout"], [c for c in clips["heldout"] if c["take"] == PAIR_NUMBER])


def _see(scan: Mapping[str, Any], number: int) -> Draft:
    key = f"image/{scan['key']}/{number}"
    return _ask(key, [Ref("scans", scan["key"])], *questions.see(key, scan["digit"]))


def _hear(clip: Mapping[str, Any]) -> Draft:
    key = f"audio/{clip['key']}"
    return _ask(key, [Ref("clips", clip["key"])], *questions.hear(key, clip["digit"]))


def _field(row: Mapping[str, Any]) -> Draft:
    key = f"table/{row['key']}"
    name = questions.pick(key, "field", tuple(questions.FIELDS))
    return _ask(key, [Ref("records", row["key"])], *questions.field(key, name, row["record"][name]))


def _pairs(split: str, scans: Rows, clips: Rows) -> Iterator[Draft]:
    """Half ask for both digits, a quarter is a match, a quarter is none."""
    if not scans or not clips:
        return
    for number in range(PAIRS[split]):
        key = f"pair/{split}/{number:04d}"
        scan = questions.pick(key, "scan", scans)
        match = {2: True, 3: False}.get(number % 4)
        fitting = [clip for clip in clips if match is None or match == (clip["digit"] == scan["digit"])]
        if not fitting:
            continue
        clip = questions.pick(key, "clip", fitting)
        ask = questions.which_two if match is None else questions.same
        parts = [Ref("scans", scan["key"]), Ref("clips", clip["key"])]
        yield _ask(key, parts, *ask(key, scan["digit"], clip["digit"]))


def _ask(key: str, parts: list[Ref], question: str, answer: str) -> Draft:
    return Draft(key, (Turn("user", (*parts, question)), Turn("assistant", (answer,))))


def _by_split(rows: Rows) -> dict[str, Rows]:
    return {split: [row for row in rows if row["split"] == split] for split in ("train", "heldout")}


def _some(rows: Rows, count: int) -> Rows:
    """`count` of the rows, spread over their order by a hash of the key."""
    return sorted(rows, key=lambda row: questions.draw(row["key"], "chosen"))[:count]
