"""Turns token ids into text as they arrive: never half a UTF-8 character, never a piece of a stop string.

The pieces of a stream, joined, are the text of all its tokens up to the first stop string, however the tokens were
grouped on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_HELD = 3
"""Replacement characters that a truncated character decodes to, at most: one, or one a byte."""


class TextStream:
    """The text of one choice.

    Args:
        decode: text of some token ids.
        stop: strings that end the choice; neither they nor what follows is part of the text.
        before: a token of plain text that stands before what is decoded, except at the beginning: tokenizers of the
            SentencePiece kind drop the space in front of the first word they decode.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = (), before: Sequence[int] = ()
    ) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._before = list(before)
        self._skip = len(decode(before))
        self._begins = True
        self._window: list[int] = []  # tokens since the last one that ended on a character boundary
        self._read = 0  # characters of the window's text already taken
        self._held = ""  # text that could be the start of a stop string
        self.stopped = False
        self.used = 0  # tokens pushed, up to the one that completed a stop string

    def push(self, tokens: Sequence[int]) -> str:
        """The text these tokens add that no later token can change."""
        if self.stopped:
            return ""
        for token in tokens:
            # One token at a time: a later token must not leak text past the stop string an earlier one completed.
            self._window.append(token)
            self.used += 1
            self._take(final=False)
            if self.stopped:
                return self._release(final=True)
        return self._release(final=False)

    def finish(self) -> str:
        """What was held back, once no more tokens come."""
        if not self.stopped:
            self._take(final=True)
        return self._release(final=True)

    def _take(self, final: bool) -> None:
        text = self._decode(self._window) if self._begins else self._decode(self._before + self._window)[self._skip :]
        # A truncated character decodes to replacement characters at the very end; wait for its other bytes.
        cut = len(text) - min(_HELD, len(text) - len(text.rstrip(_REPLACEMENT)))
        whole = text if final else text[:cut]
        fresh, self._read = whole[self._read :], max(self._read, len(whole))
        if len(whole) == len(text) and (text or not self._begins):
            self._window, self._read, self._begins = [], 0, False
        self._held += fresh
        found = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            self._held = self._held[: min(found)]
            self.stopped = True

    def _release(self, final: bool) -> str:
        keep = 0 if final else _stop_prefix(self._held, self._stop)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text


def _stop_prefix(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins a stop string."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
