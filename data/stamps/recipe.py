"""The stamps dataset: pictures of Tux Paint, their captions, and people who read the captions aloud."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from elasmo.data.draft import Draft, Ref, Turn
from elasmo.sources.contract import load_contract
from elasmo.sources.source import SilverRows

from . import media, package, questions
from .package import Recording

Row = dict[str, Any]
SCALED_TO = 224 * 224  # pixels, where the contract names no media.image_pixels
AHEAD = 64  # recordings converted before the first of them is landed
RATE = 22_050  # Hz, where the contract names no media.sample_rate


def inputs() -> dict[str, str]:
    """Hashes of the package's files, and the versions of what converts them."""
    stamps = package.root()
    hashes = {
        "stamps pictures": package.fingerprint(stamps, package.PICTURES),
        "stamps captions": package.fingerprint(stamps, [".txt"]),
        "stamps recordings": package.fingerprint(stamps, [".ogg"]),
    }
    return {**hashes, **media.versions()}


def land() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every recorded caption, then every stamp that has a picture or a caption, whatever they lack.

    Voices come first: which stamps form a group shows when their media are converted, for files that differ can hold
    the same picture or sound.
    """
    stamps, caps = package.root(), load_contract(Path(__file__).parent).media
    captions = package.captions(stamps)
    same: dict[str, set[str]] = defaultdict(set)
    for recording, content, audio, source_rate in _converted(package.recordings(stamps), caps.sample_rate or RATE):
        same[_sha256(audio)].add(recording.stamp)
        yield (
            "voices",
            {
                "key": recording.key,
                "stamp": recording.stamp,
                "language": recording.language,
                "caption": captions.get(recording.stamp, {}).get(recording.language),
                "source_rate": source_rate,
                "sha256": _sha256(content),
                "audio": audio,
            },
        )
    rows = []
    for stamp, path in package.pictures(stamps).items():
        row: Row = {"key": stamp, "captions": _json(captions.get(stamp))}
        if path is not None:
            content = path.read_bytes()
            image = media.picture(content, path.suffix, caps.image_pixels or SCALED_TO)
            row |= {"format": path.suffix[1:], "sha256": _sha256(content), "image": image}
            same[_sha256(image)].add(stamp)
        rows.append(row)
    groups = package.groups([row["key"] for row in rows], captions, same)
    for row in rows:
        yield "pictures", {**row, "group": groups[row["key"]]}


def samples(silver: SilverRows) -> Iterator[Draft]:
    """Three samples of each voice: the picture's caption, what the voice says, whether the two belong together."""
    sides: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in silver.rows("voices"):
        yield _see(row)
        yield _hear(row)
        sides[row["split"], row["language"]].append(row)
    for rows in sides.values():
        yield from _matches(rows)


def _see(row: Row) -> Draft:
    picture = Ref("pictures", row["stamp"])
    return _ask(f"see/{row['key']}", (picture,), questions.see(row["key"], row["language"]), row["caption"])


def _hear(row: Row) -> Draft:
    return _ask(f"hear/{row['key']}", (Ref("voices", row["key"]),), questions.hear(row["key"]), row["caption"])


def _matches(rows: list[Row]) -> Iterator[Draft]:
    """Every voice of a split and language once: half with its own picture, half with that of another concept."""
    order = sorted(rows, key=lambda row: questions.draw(row["key"], "match or not"))
    for number, row in enumerate(order):
        shown: Row | None = row if number % 2 == 0 else _other(row, order)
        if shown is not None:
            parts = (Ref("pictures", shown["stamp"]), Ref("voices", row["key"]))
            yield _ask(f"match/{row['key']}", parts, questions.match(row["key"]), "yes" if shown is row else "no")


def _other(row: Row, rows: list[Row]) -> Row | None:
    """A row of another concept and with another caption; None where there is none."""
    start = questions.draw(row["key"], "other picture")
    for step in range(len(rows)):
        other = rows[(start + step) % len(rows)]
        if other["concept"] != row["concept"] and other["caption"].casefold() != row["caption"].casefold():
            return other
    return None


def _ask(key: str, parts: tuple[Ref, ...], question: str, answer: str) -> Draft:
    return Draft(key, (Turn("user", (*parts, question)), Turn("assistant", (answer,))))


def _converted(recordings: list[Recording], rate: int) -> Iterator[tuple[Recording, bytes, bytes, int | None]]:
    """Each recording, its file, its sound at `rate`, its own rate, in order; libsndfile leaves Python's lock free."""

    def convert(recording: Recording) -> tuple[Recording, bytes, bytes, int | None]:
        content = recording.path.read_bytes()
        return recording, content, *media.recording(content, rate)

    with ThreadPoolExecutor() as pool:
        for start in range(0, len(recordings), AHEAD):
            yield from pool.map(convert, recordings[start : start + AHEAD])


def _json(captions: Mapping[str, str] | None) -> str | None:
    return None if captions is None else json.dumps(captions, ensure_ascii=False, sort_keys=True)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
