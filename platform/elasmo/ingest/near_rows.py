"""Near duplicates of a silver snapshot: which row is near to which, and what of it lies on both sides of the split.

Images are compared with images of all tables, texts with texts. A row is named near to the one of the smallest key
(earlier tables first), not to the one that landed first: the order in which a source gives its rows has no part in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasmo.content.near import Likeness, Pictures, Texts, first_near
from elasmo.data.draft import Ref
from elasmo.sources.marks import Kind
from elasmo.sources.silver_rules import NearRules

KINDS: tuple[Kind, ...] = ("image", "text")
LEAKS_NAMED = 20


@dataclass(frozen=True)
class Near:
    """The row of the smallest key that a row is near to, and how far: bits of 64, or 1 - similarity."""

    row: Ref
    distance: float


@dataclass(frozen=True)
class NearFound:
    """What a snapshot holds of one kind.

    Attributes:
        compared: values that have a hash.
        near: those that are near another one of a smaller key.
        left_out: rows that were dropped or refused for it.
        heldout: held-out values that were held against the training ones.
        leaked: those that are near one.
        leaks: the first of them: (training row, held-out row, distance).
    """

    compared: int = 0
    near: int = 0
    left_out: int = 0
    heldout: int = 0
    leaked: int = 0
    leaks: tuple[tuple[str, str, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "leaks": [list(leak) for leak in self.leaks]}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> NearFound:
        return cls(**{**tree, "leaks": tuple((a, b, float(d)) for a, b, d in tree["leaks"])})


@dataclass
class _Known:
    """Values of one kind that stay in silver, in the order of tables and keys."""

    refs: list[Ref] = field(default_factory=list)
    hashes: list[NDArray[Any]] = field(default_factory=list)
    compared: int = 0
    near: int = 0
    left_out: int = 0


class NearRows:
    """Collects the hashes of one table after the other."""

    def __init__(self, rules: NearRules) -> None:
        self.rules = rules
        self._known: dict[Kind, _Known] = {kind: _Known() for kind in KINDS}

    def find(self, kind: Kind, hashes: Mapping[Ref, Any]) -> dict[Ref, Near]:
        """Values of a table that are near one of a smaller key, or of an earlier table; all become known."""
        known = self._known[kind]
        refs = sorted(hashes, key=lambda ref: (ref.key, ref.column or ""))
        before = len(known.refs)
        known.refs += refs
        known.hashes += [hashes[ref] for ref in refs]
        known.compared += len(refs)
        if not refs:
            return {}
        likeness, table = self._likeness(kind), _array(known.hashes)
        nearest = first_near(table, likeness)
        rows = np.flatnonzero(nearest >= 0)
        rows = rows[rows >= before]
        distances = likeness.distances(table[rows], table[nearest[rows]])
        known.near += len(rows)
        return {
            known.refs[row]: Near(known.refs[nearest[row]], _rounded(distance))
            for row, distance in zip(rows.tolist(), distances.tolist(), strict=True)
        }

    def forget(self, kind: Kind, rows: Collection[Ref]) -> None:
        """Rows that were left out because a value of this kind is near another one."""
        self._known[kind].left_out += len(rows)
        for known in self._known.values():
            kept = [place for place, ref in enumerate(known.refs) if ref.row not in rows]
            known.refs = [known.refs[place] for place in kept]
            known.hashes = [known.hashes[place] for place in kept]

    def found(self, splits: Mapping[Ref, Collection[str]]) -> dict[str, NearFound]:
        """What there is of each kind; `splits` are those of each row, none for rows in no split."""
        return {kind: self._found(kind, splits) for kind in KINDS if self._known[kind].compared}

    def _found(self, kind: Kind, splits: Mapping[Ref, Collection[str]]) -> NearFound:
        known = self._known[kind]
        sides: dict[str, list[int]] = {
            side: [place for place, ref in enumerate(known.refs) if side in splits.get(ref.row, ())]
            for side in ("train", "heldout")
        }
        train, heldout = sides["train"], sides["heldout"]
        leaks: Sequence[tuple[str, str, float]] = ()
        if train and heldout:
            table, likeness = _array([known.hashes[place] for place in (*train, *heldout)]), self._likeness(kind)
            nearest = first_near(table, likeness, len(train))[len(train) :]
            rows = np.flatnonzero(nearest >= 0)
            distances = likeness.distances(table[len(train) + rows], table[nearest[rows]])
            leaks = [
                (str(known.refs[train[nearest[row]]]), str(known.refs[heldout[row]]), _rounded(distance))
                for row, distance in zip(rows.tolist(), distances.tolist(), strict=True)
            ]
        return NearFound(
            known.compared, known.near, known.left_out, len(heldout), len(leaks), tuple(leaks[:LEAKS_NAMED])
        )

    def _likeness(self, kind: Kind) -> Likeness:
        if kind == "image":
            return Pictures(self.rules.image.distance)
        return Texts(1 - self.rules.text.similarity)


def _array(hashes: Sequence[Any]) -> NDArray[Any]:
    return np.array(hashes, dtype=np.uint64 if np.ndim(hashes[0]) == 0 else np.uint32)


def _rounded(distance: float) -> float:
    return round(distance, 4)
