"""Finds the stamps of Tux Paint on this machine and reads what lies where: pictures, captions, recordings, copies."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from elasmo.sources.source import SourceError

BESIDE = Path(__file__).parent / "tuxpaint-stamps"
INSTALLED = Path("/usr/share/tuxpaint/stamps")
PICTURES = (".png", ".svg")  # where a stamp has both, the pixels that its author chose
RECORDING = re.compile(r"(?P<stamp>.+)_desc(?:_(?P<language>.+))?\.ogg")
CAPTION = re.compile(r"(?P<language>[A-Za-z_@-]+)\.utf8=(?P<caption>.*)")
VARIANT = re.compile(r"[_-](mirror|flip|left|right|small|medium|large|big)$")


@dataclass(frozen=True)
class Recording:
    """Somebody reads a caption: the stamp, the language as the file's name has it, the file."""

    stamp: str
    language: str
    path: Path

    @property
    def key(self) -> str:
        return f"{self.stamp}/{self.language}"


def root() -> Path:
    """The folder of stamps: `tuxpaint-stamps` beside the recipe, a folder or a link, if there; else the installed one.

    Raises:
        SourceError: neither exists.
    """
    for folder in (BESIDE, INSTALLED):
        if folder.is_dir():
            return folder
    raise SourceError(
        f"{INSTALLED} does not exist; install Debian's package with `apt-get install tuxpaint-stamps-default`, or link "
        f"the stamps folder of tuxpaint-stamps as {BESIDE}."
    )


def fingerprint(stamps: Path, suffixes: Iterable[str]) -> str:
    """sha256 over names and bytes of all files with these suffixes."""
    digest = hashlib.sha256()
    for path in _files(stamps, suffixes):
        digest.update(f"{path.relative_to(stamps).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def pictures(stamps: Path) -> dict[str, Path | None]:
    """The picture of each stamp by name, such as `animals/insects/bee`; None for captions without a picture."""
    found: dict[str, Path | None] = {}
    for suffix in reversed(PICTURES):
        found |= {_stamp(stamps, path): path for path in _files(stamps, [suffix])}
    return dict(sorted({**{_stamp(stamps, path): None for path in _files(stamps, [".txt"])}, **found}.items()))


def captions(stamps: Path) -> dict[str, dict[str, str]]:
    """Captions of each stamp by language; the first line of its text is English."""
    return {_stamp(stamps, p): parse(p.read_text("utf-8", "replace")) for p in _files(stamps, [".txt"])}


def parse(text: str) -> dict[str, str]:
    """Captions by language of a stamp's text file; empty ones are left out."""
    first, *lines = text.splitlines() or [""]
    found = {"en": first.strip()}
    for line in lines:
        match = CAPTION.fullmatch(line.strip())
        if match:
            found.setdefault(match["language"], match["caption"].strip())
    return {language: caption for language, caption in found.items() if caption}


def recordings(stamps: Path) -> list[Recording]:
    """Every recorded caption in order of stamp and language; sounds that a stamp makes are none."""
    found = []
    for path in _files(stamps, [".ogg"]):
        match = RECORDING.fullmatch(path.relative_to(stamps).as_posix())
        if match:
            found.append(Recording(match["stamp"], match["language"] or "en", path))
    return sorted(found, key=lambda recording: (recording.stamp, recording.language))


def groups(
    stamps: Iterable[str], captions: Mapping[str, Mapping[str, str]], media: Mapping[str, set[str]]
) -> dict[str, str]:
    """Group of each stamp, named for its first one.

    Two stamps belong together if they have the same English caption, a medium in common, or names that differ by a
    mirror, a side or a size alone.

    Args:
        stamps: their names.
        captions: by stamp and language.
        media: hash of a picture or a recording to the stamps that have it.
    """
    signs: dict[str, list[str]] = {}
    for stamp in stamps:
        signs.setdefault(f"name {VARIANT.sub('', stamp)}", []).append(stamp)
        english = captions.get(stamp, {}).get("en", stamp)
        signs.setdefault(f"caption {english.casefold().rstrip('.! ')}", []).append(stamp)
    return joined([*signs.values(), *map(sorted, media.values())])


def joined(together: Iterable[list[str]]) -> dict[str, str]:
    """For each name the first name of all that are linked to it by some list that holds both."""
    leader: dict[str, str] = {}

    def first(name: str) -> str:
        while leader.setdefault(name, name) != name:
            leader[name] = name = leader[leader[name]]
        return name

    for names in together:
        for name in names:
            kept, merged = sorted((first(names[0]), first(name)))
            leader[merged] = kept
    return {name: first(name) for name in list(leader)}


def _files(stamps: Path, suffixes: Iterable[str]) -> Iterator[Path]:
    return iter(sorted(path for suffix in suffixes for path in stamps.rglob(f"*{suffix}") if path.is_file()))


def _stamp(stamps: Path, path: Path) -> str:
    return path.relative_to(stamps).with_suffix("").as_posix()
