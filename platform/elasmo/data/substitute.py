"""Which row stands in for one that does not decode: the same on every rank and at every resume, so no later row shifts.

A substitute has the modality and the number of target tokens of the row it replaces: the loss of the global batch is
divided by the number of targets that the plan promised.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from elasmo.data.gold import GoldRowError
from elasmo.data.index import GoldIndex

TRIES = 8
"""Substitutes tried for one row: where so many do not decode, the rows are not what is wrong."""

Row = TypeVar("Row")


@dataclass(frozen=True)
class Substitution:
    """A row that did not decode.

    Attributes:
        planned: its row id.
        read: id of the row that was read in its place.
        reason: why, in one sentence.
    """

    planned: int
    read: int
    reason: str


def substitutes(index: GoldIndex, row_id: int) -> Iterator[int]:
    """Row ids that may stand in for a row, best first: of its source, modality and target tokens, like it in cost."""
    position = int(np.searchsorted(index.row_ids, row_id))
    source = next(s for s in index.sources if s.first <= position < s.first + s.rows)
    part = slice(source.first, source.first + source.rows)
    alike = index.modality[part] == index.modality[position]
    alike &= index.target_tokens[part] == index.target_tokens[position]
    places = np.flatnonzero(alike) + source.first
    places = places[places != position]
    apart = np.abs(index.costs[places].astype(np.int64) - index.costs[position].astype(np.int64)).sum(axis=1)
    digest = hashlib.blake2b(f"{index.snapshot}/{row_id}".encode(), digest_size=8).digest()
    chance = np.random.Generator(np.random.Philox(int.from_bytes(digest, "big"))).random(len(places))
    for place in np.lexsort((chance, apart))[:TRIES]:
        yield int(index.row_ids[places[place]])


def read_or_substitute(
    read: Callable[[int], Row], index: Callable[[], GoldIndex], row_ids: Sequence[int]
) -> tuple[list[Row], list[Substitution]]:
    """The rows, each that does not decode replaced, and what was replaced.

    Args:
        read: reads one row; raises GoldRowError for one that does not decode.
        index: of the split; asked for only when a row fails.
        row_ids: as planned.

    Raises:
        GoldRowError: of the planned row, where no substitute decodes either.
    """
    rows: list[Row] = []
    replaced: list[Substitution] = []
    for planned in row_ids:
        try:
            rows.append(read(planned))
        except GoldRowError as error:
            found = _first_that_reads(read, substitutes(index(), planned))
            if found is None:
                raise
            rows.append(found[1])
            replaced.append(Substitution(planned, found[0], str(error)))
    return rows, replaced


def _first_that_reads(read: Callable[[int], Row], row_ids: Iterator[int]) -> tuple[int, Row] | None:
    for row_id in row_ids:
        try:
            return row_id, read(row_id)
        except GoldRowError:
            continue
    return None
