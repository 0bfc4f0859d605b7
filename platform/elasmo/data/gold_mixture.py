"""Several gold snapshots read as one: what a training run on a mixture of datasets sees.

A row's id is its id in its own snapshot and, above 2^40, the place of its dataset in `data.mixture`: ids of a dataset
stay what they are when another is added after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from elasmo.config import DataConfig, LossOn, ModelConfig
from elasmo.data.draft import Split
from elasmo.data.gold import Gold, GoldError, GoldRow
from elasmo.data.index import GoldIndex, Source
from elasmo.data.manifest import canonical_hash
from elasmo.data.mixture import Weights, until
from elasmo.model.imported_processor import AnyProcessor

SHIFT = 40


def local(row_id: int) -> int:
    """A row's id in its own snapshot."""
    return row_id & ((1 << SHIFT) - 1)


class GoldMixture:
    """Gold snapshots that one processor tokenised. A single one is a mixture too: with the ids it has by itself.

    Args:
        golds: in the order of `data.mixture`.
        weights: of each, in tokens.

    Raises:
        GoldError: two of them were tokenised in different ways.
    """

    def __init__(self, golds: Sequence[Gold], weights: Sequence[Weights]) -> None:
        self.golds = tuple(golds)
        self.weights = tuple(weights)
        first, *others = self.golds
        for other in others:
            if other.processor().fingerprint() != first.processor().fingerprint():
                raise GoldError(
                    f"data.mixture: {other.name} (gold {other.snapshot}) was tokenised by another processor than "
                    f"{first.name} (gold {first.snapshot}); ingest both with one, such as data.processor={first.path}."
                )

    @property
    def loss_on(self) -> LossOn:
        return self.golds[0].loss_on

    @cached_property
    def snapshot(self) -> str:
        """The snapshot's id, or a hash of the ids where there are several."""
        ids = [gold.snapshot for gold in self.golds]
        return ids[0] if len(ids) == 1 else canonical_hash(ids)[:16]

    @property
    def name(self) -> str:
        """Names of the datasets, joined by `+`."""
        return "+".join(gold.name for gold in self.golds)

    def processor(self) -> AnyProcessor:
        """The processor that all were tokenised with."""
        return self.golds[0].processor()

    def check_model(self, model: ModelConfig) -> None:
        """Refuses a model config that reads media in another way; raises GoldError."""
        self.golds[0].check_model(model)

    def index(self, split: Split) -> GoldIndex:
        """The rows of a split, dataset after dataset; raises GoldError."""
        parts = [gold.index(split) for gold in self.golds]
        if len(parts) == 1:
            return parts[0]
        modalities = tuple(sorted({name for part in parts for name in part.modalities}))
        codes = [np.array([modalities.index(n) for n in part.modalities] or [0], dtype=np.int8) for part in parts]
        first = np.cumsum([0, *(len(part) for part in parts)])
        return GoldIndex(
            snapshot=self.snapshot,
            row_ids=np.concatenate([part.row_ids + (number << SHIFT) for number, part in enumerate(parts)]),
            shard=np.concatenate([part.shard for part in parts]),
            modalities=modalities,
            modality=np.concatenate([code[part.modality] for code, part in zip(codes, parts, strict=True)]),
            costs=np.concatenate([part.costs for part in parts]),
            target_tokens=np.concatenate([part.target_tokens for part in parts]),
            sources=tuple(
                Source(gold.name, gold.snapshot, int(first[number]), len(parts[number]))
                for number, gold in enumerate(self.golds)
            ),
        )

    def read(self, row_ids: Sequence[int]) -> list[GoldRow]:
        """The rows with these ids, decoded, in the order asked for; raises GoldError, GoldRowError."""
        rows = []
        for row_id in map(int, row_ids):
            (row,) = self.of(row_id).read([local(row_id)])
            rows.append(replace(row, row_id=row_id))
        return rows

    def of(self, row_id: int) -> Gold:
        """The gold snapshot that holds a row."""
        number = row_id >> SHIFT
        if not 0 <= number < len(self.golds):
            raise GoldError(f"Row {row_id} is of source {number}; data.mixture has {len(self.golds)}, from 0.")
        return self.golds[number]

    def pinned(self, data: DataConfig) -> DataConfig:
        """The section with the snapshots that are read written in."""
        if not data.mixture:
            return data.model_copy(update={"gold": self.snapshot})
        sources = tuple(
            source.model_copy(update={"gold": gold.snapshot})
            for source, gold in zip(data.mixture, self.golds, strict=True)
        )
        return data.model_copy(update={"mixture": sources})

    def cursor(self, step: int) -> list[list[object]]:
        """What the rows of steps before `step` were drawn from: place, dataset, snapshot and weights of each source.

        Sources and weights that begin later are not in it: a run may add them when it is taken up again.
        """
        known = [until(weights, step) for weights in self.weights]
        return [
            [number, gold.name, gold.snapshot, changes]
            for number, (gold, changes) in enumerate(zip(self.golds, known, strict=True))
            if any(weight for _, weight in changes)
        ]


def open_mixture(data: DataConfig, loss_on: LossOn = "answers") -> GoldMixture:
    """The gold snapshots that the section names, or the datasets' newest.

    Raises:
        GoldError: one is absent or damaged, or they do not go together.
    """
    if not data.mixture:
        return GoldMixture([Gold.open(data.lake, data.dataset, data.gold, loss_on)], [{0: 1.0}])
    golds = [Gold.open(data.lake, source.dataset, source.gold, loss_on) for source in data.mixture]
    return GoldMixture(golds, [source.weights for source in data.mixture])
