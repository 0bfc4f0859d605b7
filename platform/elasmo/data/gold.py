"""Gold: samples with frozen row ids, token costs and their media, read by row id in any order.

Gold stores tokens and media files; what a medium becomes for the model (pixels, log-mel frames) is computed at read,
which is the work that decode tasks do ahead of training.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasmo.config import LimitsConfig, LossOn, ModelConfig
from elasmo.data.draft import Split
from elasmo.data.index import MODULES, GoldIndex, Source, narrow
from elasmo.data.manifest import Snapshot, SnapshotError, latest, open_snapshot
from elasmo.data.openlineage_events import Artifact, artifact
from elasmo.model.encoded import Encoded
from elasmo.model.imported_processor import AnyProcessor, load_processor
from elasmo.model.media import MediaError
from elasmo.model.processor import ProcessorError
from elasmo.model.sample import Audio, Image, Message, Segment, Table, Text

SPLITS: tuple[Split, ...] = ("train", "heldout")
INDEX = "index"
PROCESSOR = "processor"
OPEN_SHARDS = 8

SCHEMA = pa.schema(
    [
        ("row_id", pa.int64()),
        ("key", pa.string()),
        ("modality", pa.string()),
        ("concept", pa.string()),
        ("source", pa.list_(pa.string())),
        ("question", pa.string()),
        ("answer", pa.string()),
        ("messages", pa.string()),
        ("images", pa.list_(pa.binary())),
        ("audio", pa.list_(pa.binary())),
        ("tokens", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.uint8())),
    ]
)
ORIGIN = ["key", "modality", "concept", "source", "question", "answer"]
INDEX_SCHEMA = pa.schema(
    [
        ("row_id", pa.int64()),
        ("split", pa.string()),
        ("shard", pa.int32()),
        ("modality", pa.string()),
        *((f"{module}_tokens", pa.int32()) for module in MODULES),
        ("target_tokens", pa.int32()),
    ]
)


class GoldError(ValueError):
    """A gold snapshot that cannot be read, in a sentence that names it and the mend."""


class GoldRowError(ValueError):
    """A gold row that cannot be decoded; names the row and the reason."""


@dataclass(frozen=True)
class GoldRow:
    """A sample, decoded.

    Attributes:
        row_id: frozen id, unique over the splits of a snapshot.
        key: the sample's key, the same in every snapshot.
        split: `train` or `heldout`.
        modality: kinds of media joined by `+`, such as `image+audio`; `text` without any.
        encoded: what the model reads.
        question: text of the last user message.
        answer: text of the assistant's answer.
        messages: the whole conversation, the answer last.
        images: encoded files in reading order.
        audio: encoded files in reading order.
        record: the first record, None without one.
        concept: what the sample shares with rows of its own split only.
        source: bronze rows it was made of, as `table/key`.
    """

    row_id: int
    key: str
    split: Split
    modality: str
    encoded: Encoded
    question: str
    answer: str
    messages: tuple[Message, ...]
    images: list[bytes]
    audio: list[bytes]
    record: dict[str, float | int | str | None] | None
    concept: str
    source: list[str]


@dataclass(frozen=True)
class RowOrigin:
    """Where a gold row comes from.

    Attributes:
        row_id: its id in the snapshot.
        split: `train` or `heldout`.
        file: the shard that holds it, below the snapshot's folder.
        source: bronze rows it was made of, as `table/key`.
        key, modality, concept, question, answer: as in `GoldRow`.
    """

    row_id: int
    split: Split
    file: str
    source: tuple[str, ...]
    key: str
    modality: str
    concept: str
    question: str
    answer: str


class Gold:
    """One gold snapshot, open for reading. Cheap to construct in every process that reads.

    Args:
        loss_on: which tokens are targets, in what is read and in the index alike; gold itself stores the answers'.
    """

    def __init__(self, snapshot: Snapshot, open_shards: int = OPEN_SHARDS, loss_on: LossOn = "answers") -> None:
        self.loss_on = loss_on
        self._snapshot = snapshot
        self._open: OrderedDict[int, pa.Table] = OrderedDict()
        self._capacity = open_shards
        self._shards = [(split, shard) for split in SPLITS for shard in snapshot.shards(split)]
        self._starts = np.cumsum([0] + [int(shard["rows"]) for _, shard in self._shards])

    @staticmethod
    def open(lake: str | Path, dataset: str | Path, snapshot: str | None = None, loss_on: LossOn = "answers") -> Gold:
        """The snapshot `snapshot` of a dataset, given by name or folder; the one ingested last when None.

        Raises:
            GoldError: there is none, or its manifest is damaged.
        """
        name = Path(dataset).resolve().name if str(dataset) in (".", "..") else Path(dataset).name
        snapshot = snapshot or latest(Path(lake), name, "gold")
        if snapshot is None:
            raise GoldError(f"{lake} has no gold of dataset {name!r}; run `elasmo ingest {dataset} data.lake={lake}`.")
        try:
            return Gold(open_snapshot(Path(lake), name, "gold", snapshot), loss_on=loss_on)
        except SnapshotError as error:
            raise GoldError(str(error)) from None

    @property
    def manifest(self) -> dict[str, Any]:
        return self._snapshot.manifest

    @property
    def snapshot(self) -> str:
        """The snapshot's id."""
        return self._snapshot.id

    @property
    def name(self) -> str:
        """The dataset's name."""
        return str(self.manifest["dataset"])

    @property
    def artifact(self) -> Artifact:
        """The snapshot as lineage events name it."""
        return artifact(self._snapshot)

    @property
    def path(self) -> Path:
        """The snapshot's folder."""
        return self._snapshot.path

    @cached_property
    def limits(self) -> LimitsConfig:
        """The caps that the media were checked against."""
        return LimitsConfig(**self._snapshot.details["limits"])

    def processor(self) -> AnyProcessor:
        """The processor that gold was tokenised with."""
        return self._processor

    @cached_property
    def _processor(self) -> AnyProcessor:
        try:
            return load_processor(self._snapshot.path / PROCESSOR)
        except ProcessorError as error:
            raise GoldError(str(error)) from None

    def check_model(self, model: ModelConfig) -> None:
        """Refuses a model config that reads media in another way than this snapshot was tokenised for.

        Raises:
            GoldError: names both fingerprints and the mend.
        """
        wanted = self._processor.with_model(model).fingerprint()
        if wanted != self._processor.fingerprint():
            raise GoldError(
                f"Gold {self.snapshot} was tokenised for other model.vision, audio, table or fusion settings "
                f"({self._processor.fingerprint()[:12]}, wanted {wanted[:12]}); run `elasmo ingest` with this config."
            )

    def verify(self) -> None:
        """Hashes every file; raises GoldError at the first one that differs."""
        try:
            self._snapshot.verify()
        except SnapshotError as error:
            raise GoldError(str(error)) from None

    def index(self, split: Split) -> GoldIndex:
        """What planning needs of every row of a split, in gold order.

        Raises:
            GoldError: the index file is absent or damaged.
        """
        try:
            table = self._snapshot.read_all(INDEX)
        except SnapshotError as error:
            raise GoldError(str(error)) from None
        table = table.filter(pc.equal(table.column("split"), split))
        modalities = tuple(self._snapshot.details["modalities"])
        modality = pc.index_in(table.column("modality"), pa.array(modalities, pa.string())).to_numpy()
        costs = np.stack([table.column(f"{m}_tokens").to_numpy() for m in MODULES], axis=1)
        targets = table.column("target_tokens").to_numpy()
        if self.loss_on == "all":
            # Every token but places of media, and but the first, a role's: nothing stands before it.
            targets = costs[:, 0] - costs[:, 1:].sum(axis=1, dtype=np.int32) - 1
        return GoldIndex(
            snapshot=self.snapshot,
            row_ids=table.column("row_id").to_numpy(),
            shard=table.column("shard").to_numpy(),
            modalities=modalities,
            modality=modality.astype(np.int8),
            costs=narrow(costs),
            target_tokens=narrow(targets),
            sources=(Source(self.name, self.snapshot, 0, len(table)),),
        )

    def read(self, row_ids: Sequence[int]) -> list[GoldRow]:
        """The rows with these ids, decoded, in the order asked for.

        Raises:
            GoldError: no such row, or a shard that is absent or damaged.
            GoldRowError: a row whose media do not decode.
        """
        return [self._row(int(row_id)) for row_id in row_ids]

    def origins(self, row_ids: Sequence[int]) -> list[RowOrigin]:
        """What the rows with these ids were made of, without decoding them, in the order asked for.

        Raises:
            GoldError: no such row, or a shard that is absent or damaged.
        """
        found = []
        for row_id in map(int, row_ids):
            number, place = self._place(row_id)
            row = self._shard(number).select(ORIGIN).slice(place, 1).to_pylist()[0]
            split, shard = self._shards[number]
            found.append(RowOrigin(row_id, split, shard["file"], tuple(row.pop("source")), **row))
        return found

    def _place(self, row_id: int) -> tuple[int, int]:
        """Number of the shard that holds a row, and the row's place in it."""
        if not 0 <= row_id < self._starts[-1]:
            raise GoldError(f"Gold {self.snapshot} has no row {row_id}; ids run from 0 to {self._starts[-1] - 1}.")
        number = int(np.searchsorted(self._starts, row_id, side="right")) - 1
        return number, row_id - int(self._starts[number])

    def _row(self, row_id: int) -> GoldRow:
        number, place = self._place(row_id)
        stored = self._shard(number).slice(place, 1).to_pylist()[0]
        messages = unpack_messages(stored["messages"], stored["images"], stored["audio"])
        processor, name = self._processor, f"Row {row_id} of gold {self.snapshot} ({stored['key']})"
        try:
            encoded = processor.encode_chat(messages, self.limits)
        except (MediaError, ProcessorError) as error:
            raise GoldRowError(f"{name}: {error}") from None
        if encoded.tokens.tolist() != stored["tokens"]:
            raise GoldRowError(f"{name} reads as other tokens than it was stored with; run `elasmo ingest` again.")
        records = [segment.record for message in messages for segment in message.segments if isinstance(segment, Table)]
        return GoldRow(
            row_id=row_id,
            key=stored["key"],
            split=self._shards[number][0],
            modality=stored["modality"],
            encoded=encoded.with_targets(self.loss_on, self._processor.config.tokens),
            question=stored["question"],
            answer=stored["answer"],
            messages=messages,
            images=stored["images"],
            audio=stored["audio"],
            record=dict(records[0]) if records else None,
            concept=stored["concept"],
            source=stored["source"],
        )

    def _shard(self, number: int) -> pa.Table:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        try:
            table = self._snapshot.read_shard(self._shards[number][1])
        except SnapshotError as error:
            raise GoldError(str(error)) from None
        self._open[number] = table
        if len(self._open) > self._capacity:
            self._open.popitem(last=False)
        return table


def pack_messages(messages: Sequence[Message]) -> tuple[str, list[bytes], list[bytes]]:
    """A conversation as JSON that points at its images and sounds by number, the images, the sounds."""
    images: list[bytes] = []
    audio: list[bytes] = []

    def packed(segment: Segment) -> dict[str, Any]:
        match segment:
            case Text(text):
                return {"text": text}
            case Image(data):
                images.append(data)
                return {"image": len(images) - 1}
            case Audio(data):
                audio.append(data)
                return {"audio": len(audio) - 1}
            case Table(record):
                return {"table": dict(record)}

    tree = [{"role": message.role, "segments": [packed(s) for s in message.segments]} for message in messages]
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":")), images, audio


def unpack_messages(packed: str, images: Sequence[bytes], audio: Sequence[bytes]) -> tuple[Message, ...]:
    """The conversation that `pack_messages` packed."""

    def segment(tree: Mapping[str, Any]) -> Segment:
        ((kind, value),) = tree.items()
        match kind:
            case "text":
                return Text(value)
            case "image":
                return Image(images[value])
            case "audio":
                return Audio(audio[value])
            case _:
                return Table(value)

    return tuple(Message(m["role"], tuple(segment(s) for s in m["segments"])) for m in json.loads(packed))
