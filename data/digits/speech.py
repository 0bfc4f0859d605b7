"""Spoken digits from espeak-ng. Run as a script it writes every clip to standard output; imported, it reads them back.

espeak-ng keeps state (phase, noise, echo) from one utterance to the next. Each run is therefore one fresh process that
speaks a fixed list in a fixed order with seeded noise, which gives the same bytes every time.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import struct
import subprocess
import sys
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SAMPLE_RATE = 22_050  # espeak-ng's own rate, Hz
LANGUAGES = {"en-us": "en-us", "en-gb": "en", "de": "de", "fr": "fr", "es": "es", "it": "it"}  # ours -> espeak-ng's
MALE = ("m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "Andy", "Hugo", "Reed", "klatt", "croak")
FEMALE = ("f1", "f2", "f3", "f4", "f5", "Annie", "belinda", "linda", "steph2")
VOICES = MALE + FEMALE  # left out: whispers, robots, and a few (Marco, Lee, Alicia, zac) that are hard to make out
HELDOUT = ("m2", "m7", "f3", "f5")  # the contract's splits.clips.heldout; here they get fewer takes
TAKES, HELDOUT_TAKES = 3, 2

_SYNCHRONOUS = 2  # AUDIO_OUTPUT_SYNCHRONOUS: the same samples as AUDIO_OUTPUT_RETRIEVAL, which sleeps ~15 ms a word
_RATE, _PITCH = 1, 3  # espeakRATE (words a minute), espeakPITCH (0..100)
_UTF8 = 1


@dataclass(frozen=True)
class Take:
    """One utterance: who says which digit, in which language, how fast and how high."""

    language: str
    voice: str
    number: int
    digit: int

    @property
    def key(self) -> str:
        return f"{self.language}-{self.voice}-{self.number}-{self.digit}"

    @property
    def gender(self) -> str:
        return "male" if self.voice in MALE else "female"

    @property
    def speed(self) -> int:
        """Words a minute, 130 to 219."""
        return 130 + self._draw("speed") % 90

    @property
    def pitch(self) -> int:
        """espeak-ng's base pitch, 30 to 69."""
        return 30 + self._draw("pitch") % 40

    @property
    def seed(self) -> int:
        """Seed of the breath noise."""
        return self._draw("noise")

    def _draw(self, what: str) -> int:
        return int.from_bytes(hashlib.blake2b(f"{what}/{self.key}".encode(), digest_size=4).digest(), "big") >> 1


def takes(languages: tuple[str, ...] = tuple(LANGUAGES), voices: tuple[str, ...] = VOICES) -> list[Take]:
    """Everything that is spoken, in the order in which it is spoken."""
    return [
        Take(language, voice, number, digit)
        for language in languages
        for voice in voices
        for number in range(HELDOUT_TAKES if voice in HELDOUT else TAKES)
        for digit in range(10)
    ]


def clips(
    languages: tuple[str, ...] = tuple(LANGUAGES), voices: tuple[str, ...] = VOICES
) -> Iterator[tuple[Take, bytes]]:
    """Every take with its WAV file, spoken by a fresh process."""
    command = [sys.executable, __file__, ",".join(languages), ",".join(voices)]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"Speech synthesis failed: {done.stderr.decode().strip().splitlines()[-1]}")
    sound, offset = done.stdout, 0
    for take in takes(languages, voices):
        (size,) = struct.unpack_from("<I", sound, offset)
        yield take, sound[offset + 4 : offset + 4 + size]
        offset += 4 + size


def fingerprint() -> str:
    """sha256 over the espeak-ng library and its data: other files may speak differently."""
    import espeakng_loader

    digest = hashlib.sha256(Path(espeakng_loader.get_library_path()).read_bytes())
    data = Path(espeakng_loader.get_data_path())
    for path in sorted(path for path in data.rglob("*") if path.is_file()):
        digest.update(path.relative_to(data).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _synthesise(spoken: list[Take]) -> Iterator[bytes]:
    import espeakng_loader

    espeak = ctypes.CDLL(espeakng_loader.get_library_path())
    if espeak.espeak_Initialize(_SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0) != SAMPLE_RATE:
        raise RuntimeError("espeak-ng did not start at 22,050 Hz")
    espeak.espeak_ng_SetRandSeed.argtypes = [ctypes.c_long]
    pieces: list[bytes] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    def collect(samples: int | None, count: int, _: int | None) -> int:
        if samples and count > 0:
            pieces.append(ctypes.string_at(samples, 2 * count))
        return 0

    espeak.espeak_SetSynthCallback(collect)
    for take in spoken:
        if espeak.espeak_SetVoiceByName(f"{LANGUAGES[take.language]}+{take.voice}".encode()):
            raise RuntimeError(f"espeak-ng has no voice {take.voice} for {take.language}")
        espeak.espeak_ng_SetRandSeed(take.seed)
        espeak.espeak_SetParameter(_RATE, take.speed, 0)
        espeak.espeak_SetParameter(_PITCH, take.pitch, 0)
        pieces.clear()
        text = str(take.digit).encode()
        espeak.espeak_Synth(text, len(text) + 1, 0, 1, 0, _UTF8, None, None)
        yield _wav(_trim(b"".join(pieces)))


def _trim(samples: bytes) -> bytes:
    """Cuts what is softer than 2 % of the peak off both ends, less 10 ms before and 20 ms after."""
    import numpy as np

    sound = np.frombuffer(samples, dtype="<i2")
    loudness = np.abs(sound.astype(np.int32))
    loud = np.flatnonzero(loudness > 0.02 * loudness.max())
    return sound[max(0, loud[0] - SAMPLE_RATE // 100) : loud[-1] + SAMPLE_RATE // 50].tobytes()


def _wav(samples: bytes) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(SAMPLE_RATE)
        out.writeframes(samples)
    return file.getvalue()


if __name__ == "__main__":
    for sound_file in _synthesise(takes(tuple(sys.argv[1].split(",")), tuple(sys.argv[2].split(",")))):
        sys.stdout.buffer.write(struct.pack("<I", len(sound_file)) + sound_file)
