"""Makes gold: samples from silver rows, in a frozen shuffled order, tokenised, with the cost of each per module."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from elasmo.config import Config, LimitsConfig
from elasmo.data import gold
from elasmo.data.draft import Draft, DraftSegment, Record, Ref, Split
from elasmo.data.gold import INDEX, INDEX_SCHEMA, PROCESSOR, SCHEMA, SPLITS, GoldError, pack_messages
from elasmo.data.index import MODULES
from elasmo.data.manifest import Snapshot, SnapshotWriter, canonical_hash, code_hash
from elasmo.ingest.silver import Silver
from elasmo.model import cell, encoded, imported_processor, media, mel, processor, tokenizer
from elasmo.model.cell import DAY_S, days_and_seconds
from elasmo.model.encoded import Costs, Encoded
from elasmo.model.imported_processor import AnyProcessor, load_processor
from elasmo.model.media import MediaError
from elasmo.model.processor import Processor, ProcessorError, TableField
from elasmo.model.sample import Audio, Image, Message, Segment, Table, Text
from elasmo.model.tokenizer import train_tokenizer
from elasmo.sources import row_samples
from elasmo.sources.contract import Contract
from elasmo.sources.quarantine import Refusal, RowError, read_quarantine, write_quarantine
from elasmo.sources.source import Source

SHARD_ROWS = 512
SAMPLES = "samples"
KINDS = ("image", "audio", "table")


@dataclass(frozen=True)
class Placed:
    """A draft with what its parts say of it."""

    draft: Draft
    split: Split
    concept: str
    modality: str

    @property
    def order(self) -> bytes:
        """Sort key of gold: a hash of the sample's key, so neighbours are unlike and the order never changes."""
        return hashlib.blake2b(self.draft.key.encode(), digest_size=16).digest()

    @property
    def source(self) -> list[str]:
        refs = (self.draft.source, *self.draft.refs)
        return list(dict.fromkeys(str(ref) for ref in refs if ref is not None))


def gold_fingerprint(silver: Snapshot, contract: Contract, config: Config, limits: LimitsConfig) -> str:
    """Hash of everything that gold is computed from."""
    code = code_hash(
        sys.modules[__name__], gold, row_samples, cell, encoded, imported_processor, media, mel, processor, tokenizer
    )
    settings = [part.model_dump(mode="json") for part in (contract, config.model, limits)]
    given = _given_processor(config)
    encoded_by = config.data.vocab_size if given is None else given.fingerprint()
    return canonical_hash([code, silver.sha256, encoded_by, settings])


def write_gold(
    lake: Path, silver: Silver, contract: Contract, source: Source, config: Config, limits: LimitsConfig
) -> Snapshot:
    """Places, orders, tokenises and writes the samples; `details.quarantine` names the refused ones.

    Raises:
        GoldError: audio whose rate the model does not take, or no training sample left.
    """
    audio, rate = config.model.audio, contract.media.sample_rate
    if audio is not None and rate is not None and audio.sample_rate != rate:
        raise GoldError(
            f"model.audio.sample_rate is {audio.sample_rate} but {contract.name} has audio at {rate} Hz; set "
            f"model.audio.sample_rate={rate}."
        )
    refusals: list[Refusal] = []
    placed = place(source.drafts(silver), silver, contract.modalities, refusals)
    train = [sample for sample in placed if sample.split == "train"]
    if not train:
        why = _why(lake, contract.name, silver.snapshot, refusals)
        raise GoldError(f"{contract.name} has no training sample left{why}; mend the rows or the contract.")
    made = _processor(config, train, silver, contract)
    with SnapshotWriter(lake, contract.name, "gold", [silver.snapshot.parent]) as writer:
        counts = _write_rows(writer, placed, silver, made, limits, refusals)
        made.save(writer.folder / PROCESSOR)
        writer.add_folder(writer.folder / PROCESSOR)
        quarantine = write_quarantine(lake, contract.name, silver.snapshot, refusals)
        writer.details = {
            "quarantine": quarantine,
            "refused": len(refusals),
            "limits": limits.model_dump(mode="json"),
            "processor": made.fingerprint(),
            "modalities": sorted({modality for _, modality in counts}),
            "rows_by_modality": {s: {m: n for (t, m), n in sorted(counts.items()) if t == s} for s in SPLITS},
        }
    if not writer.snapshot.tables()["train"]:
        why = _why(lake, contract.name, silver.snapshot, refusals)
        raise GoldError(f"{contract.name} has no training sample left{why}; mend the rows or the config.")
    return writer.snapshot


def _processor(config: Config, train: Sequence[Placed], silver: Silver, contract: Contract) -> AnyProcessor:
    """The one that `data.processor` names, or one with a tokenizer trained on the dataset's text."""
    given = _given_processor(config)
    if given is not None:
        return given
    tokenizer = train_tokenizer(_texts(train), config.data.vocab_size)
    return Processor(tokenizer, config.model, table_fields(train, silver, contract))


def _given_processor(config: Config) -> AnyProcessor | None:
    if config.data.processor is None:
        return None
    try:
        found = load_processor(Path(config.data.processor) / PROCESSOR)
    except ProcessorError as error:
        raise GoldError(f"data.processor: {error} Name the folder of an imported or published model.") from None
    made = found.with_model(config.model)
    if made.fingerprint() != found.fingerprint():
        raise GoldError(
            f"data.processor: {config.data.processor} reads tokens or media in another way than this model config; set "
            f"model.from={config.data.processor}."
        )
    return made


def place(
    drafts: Iterable[Draft | Refusal], silver: Silver, modalities: Sequence[str], refusals: list[Refusal]
) -> list[Placed]:
    """Drafts with split, concept and modality, training first, in gold order; unfit ones are added to `refusals`."""
    placed: dict[str, Placed] = {}
    for draft in drafts:
        if isinstance(draft, Refusal):
            refusals.append(draft)
            continue
        try:
            if draft.key in placed:
                raise RowError("another sample has the same key")
            placed[draft.key] = _placed(draft, silver, modalities)
        except RowError as error:
            refusals.append(Refusal("gold", SAMPLES, draft.key, str(error)))
    heldout = {
        digest: sample.draft.key
        for sample in placed.values()
        if sample.split == "heldout"
        for digest in _media_digests(sample, silver)
    }
    kept = []
    for sample in placed.values():
        leaks = (
            [] if sample.split == "heldout" else [heldout[d] for d in _media_digests(sample, silver) if d in heldout]
        )
        if leaks:
            reason = f"an image or sound of it is also in held-out sample {leaks[0]!r}; training on it would leak"
            refusals.append(Refusal("gold", SAMPLES, sample.draft.key, reason))
        else:
            kept.append(sample)
    return sorted(kept, key=lambda sample: (SPLITS.index(sample.split), sample.order))


def table_fields(train: Sequence[Placed], silver: Silver, contract: Contract) -> tuple[TableField, ...]:
    """The record's fields, numbers and times with mean and deviation over the records of training samples."""
    records = [record for sample in train for record in _records(sample.draft, silver)]
    fields = []
    for name, field in contract.record.items():
        if field.type == "category":
            fields.append(TableField(name, "category", field.categories))
            continue
        if field.type == "text":
            fields.append(TableField(name, "text"))
            continue
        given = [record[name] for record in records if record.get(name) is not None]
        values = np.array([_days(value) for value in given] if field.type == "time" else given, dtype=np.float64)
        mean, std = (float(values.mean()), float(values.std())) if len(values) else (0.0, 1.0)
        fields.append(TableField(name, field.type, mean=round(mean, 6), std=round(std, 6) or 1.0))
    return tuple(fields)


def _days(time: str) -> float:
    days, seconds = days_and_seconds(time)
    return days + seconds / DAY_S


def _placed(draft: Draft, silver: Silver, modalities: Sequence[str]) -> Placed:
    roles = [turn.role for turn in draft.turns[-2:]]
    if roles != ["user", "assistant"] or not all(isinstance(s, str) for s in draft.turns[-1].segments):
        raise RowError("a sample ends with a user's turn and the assistant's answer in text")
    places = [silver.place(ref) for ref in draft.refs]
    splits = {split for split in (draft.split, *(split for split, _ in places)) if split is not None}
    if len(splits) != 1:
        raise RowError("its parts are of both splits" if splits else "neither it nor its parts are in a split")
    concepts = [concept for concept in (draft.concept, *(concept for _, concept in places)) if concept is not None]
    kinds = {_kind(segment, silver) for turn in draft.turns for segment in turn.segments}
    modality = "+".join(kind for kind in KINDS if kind in kinds) or "text"
    if modality not in modalities:
        raise RowError(f"its modality {modality} is not one of the contract's: {', '.join(modalities)}")
    (split,) = splits
    return Placed(draft, split, " + ".join(dict.fromkeys(concepts)) or draft.key, modality)


def _kind(segment: DraftSegment, silver: Silver) -> str:
    if isinstance(segment, str):
        return "text"
    kind = "record" if isinstance(segment, Record) else silver.kind(segment)
    return "table" if kind == "record" else kind


def _media_digests(sample: Placed, silver: Silver) -> Iterator[str]:
    return (silver.digest(ref) for ref in sample.draft.refs if silver.kind(ref) != "record")


def _records(draft: Draft, silver: Silver) -> Iterator[dict[str, Any]]:
    for turn in draft.turns:
        for segment in turn.segments:
            if isinstance(segment, Record):
                yield dict(segment.fields)
            elif isinstance(segment, Ref) and silver.kind(segment) == "record":
                yield silver.content(segment)


def _texts(samples: Sequence[Placed]) -> Iterator[str]:
    for sample in samples:
        for turn in sample.draft.turns:
            yield from (segment for segment in turn.segments if isinstance(segment, str))


def _messages(draft: Draft, silver: Silver) -> tuple[Message, ...]:
    def segment(part: DraftSegment) -> Segment:
        if isinstance(part, str):
            return Text(part)
        if isinstance(part, Record):
            return Table(part.fields)
        content = silver.content(part)
        kind = silver.kind(part)
        return Image(content) if kind == "image" else Audio(content) if kind == "audio" else Table(content)

    return tuple(Message(turn.role, tuple(segment(part) for part in turn.segments)) for turn in draft.turns)


def _write_rows(
    writer: SnapshotWriter,
    placed: Sequence[Placed],
    silver: Silver,
    made: AnyProcessor,
    limits: LimitsConfig,
    refusals: list[Refusal],
) -> Counter[tuple[str, str]]:
    """Writes both splits and the index; row ids count up over training rows, then held-out rows."""
    index: list[dict[str, Any]] = []
    counts: Counter[tuple[str, str]] = Counter()
    shard = 0
    for split in SPLITS:
        writer.declare(split, SCHEMA)
        rows: list[dict[str, Any]] = []
        for sample in (sample for sample in placed if sample.split == split):
            messages = _messages(sample.draft, silver)
            try:
                encoded = made.encode_chat(messages, limits)
            except (MediaError, ProcessorError) as error:
                refusals.append(Refusal("gold", SAMPLES, sample.draft.key, str(error)))
                continue
            costs = encoded.costs(made.config.tokens)
            index.append(_index_row(len(index), split, shard, sample.modality, costs))
            rows.append(_row(len(index) - 1, sample, messages, encoded))
            counts[split, sample.modality] += 1
            if len(rows) == SHARD_ROWS:
                writer.add(split, pa.Table.from_pylist(rows, SCHEMA))
                rows, shard = [], shard + 1
        if rows:
            writer.add(split, pa.Table.from_pylist(rows, SCHEMA))
            shard += 1
    writer.add(INDEX, pa.Table.from_pylist(index, INDEX_SCHEMA))
    return counts


def _row(row_id: int, sample: Placed, messages: Sequence[Message], encoded: Encoded) -> dict[str, Any]:
    packed, images, audio = pack_messages(messages)
    return {
        "row_id": row_id,
        "key": sample.draft.key,
        "modality": sample.modality,
        "concept": sample.concept,
        "source": sample.source,
        "question": _text(messages[-2]),
        "answer": _text(messages[-1]),
        "messages": packed,
        "images": images,
        "audio": audio,
        "tokens": encoded.tokens,
        "loss_mask": encoded.loss_mask,
    }


def _index_row(row_id: int, split: Split, shard: int, modality: str, costs: Costs) -> dict[str, Any]:
    modules = {f"{module}_tokens": getattr(costs, module) for module in MODULES}
    return {
        "row_id": row_id,
        "split": split,
        "shard": shard,
        "modality": modality,
        **modules,
        "target_tokens": costs.target,
    }


def _text(message: Message) -> str:
    return "".join(segment.text for segment in message.segments if isinstance(segment, Text))


def _why(lake: Path, dataset: str, silver: Snapshot, refusals: Sequence[Refusal]) -> str:
    """Why there may be no sample, in brackets: what gold refused, else what silver did, else that there was no row."""
    step = "" if refusals else " by silver"
    refused = list(refusals) or read_quarantine(lake, dataset, silver.details["quarantine"])
    if refused:
        return f" ({len(refused)} refused{step}, the first because {refused[0].reason})"
    return "" if sum(silver.tables().values()) else " (its sources have no row)"
