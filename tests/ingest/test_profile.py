"""Profiles: shards merged against the whole, and what a silver snapshot's profile holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from elasmo.config import Config
from elasmo.content.sketch import DISTINCT_ERROR, RANK_ERROR
from elasmo.data.manifest import SnapshotWriter, open_snapshot
from elasmo.ingest.ingest import ingest
from elasmo.ingest.profile import Profile, ProfileError, TableProfile
from elasmo.ingest.profiling import profile_snapshot, profile_table
from tests.pets import png, wav


def rows_of(count: int) -> pa.Table:
    """Every kind of column, with nulls."""
    random = np.random.default_rng(count)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        media = [png(number, 4 + number % 5), wav(number, seconds=0.01 * (1 + number % 7)), b"neither", None]
        rows.append(
            {
                "key": f"key-{number}",
                "digit": number % 10 if number % 7 else None,
                "weight": float(random.normal()),
                "coat": ["black", "white", None][number % 3],
                "medium": media[number % 4],
                "record": {"age": number, "seen": "2024-01-31"} if number % 5 else None,
                "tokens": list(range(number % 6)),
                "images": [png(number)] * (number % 3),
            }
        )
    fields = [("key", pa.string()), ("digit", pa.int64()), ("weight", pa.float64()), ("coat", pa.string())]
    record = pa.struct([("age", pa.int64()), ("seen", pa.string())])
    lists = [("tokens", pa.list_(pa.int32())), ("images", pa.list_(pa.binary()))]
    return pa.Table.from_pylist(rows, pa.schema([*fields, ("medium", pa.binary()), ("record", record), *lists]))


@pytest.mark.parametrize("shards", [1, 3, 11])
def test_merged_shards_are_the_whole(shards: int) -> None:
    rows = rows_of(1500)
    whole, merged = profile_table(rows), TableProfile()
    for part in np.array_split(np.arange(1500), shards):
        merged = merged.merge(profile_table(rows.slice(part[0], len(part))))
    assert (merged.rows, merged.schema, list(merged.columns)) == (1500, whole.schema, list(whole.columns))
    for name, column in whole.columns.items():
        other = merged.columns[name]
        assert (other.type, other.rows, other.nulls, other.mix) == (column.type, column.rows, column.nulls, column.mix)
        assert (other.found, other.facets.keys()) == (column.found, column.facets.keys())
        if column.distinct is not None and other.distinct is not None:
            both = other.distinct.estimate(), column.distinct.estimate()
            assert both[0] == pytest.approx(both[1], rel=8 * DISTINCT_ERROR)
        for facet, numbers in column.facets.items():
            found = other.facets[facet]
            exact = ("count", "not_finite", "minimum", "maximum")
            assert [getattr(found, key) for key in exact] == [getattr(numbers, key) for key in exact]
            assert found.mean == pytest.approx(numbers.mean)
            edges = sorted(set(numbers.quantiles([0.1, 0.5, 0.9])))
            assert np.cumsum(found.shares(edges)) == pytest.approx(np.cumsum(numbers.shares(edges)), abs=2 * RANK_ERROR)


def test_columns_hold_what_numpy_counts() -> None:
    columns = profile_table(rows_of(300)).columns
    digit, weight = columns["digit"], columns["weight"].facets["value"]
    assert digit.nulls == len(range(0, 300, 7)) and sum((digit.mix.counts or {}).values()) == 300 - digit.nulls
    drawn = np.random.default_rng(300).normal(size=300)
    assert (weight.minimum, weight.maximum, weight.mean) == pytest.approx((drawn.min(), drawn.max(), drawn.mean()))
    assert weight.quantiles([0.5]) == [np.sort(drawn)[149]]
    assert columns["coat"].mix.counts == {"black": 100, "white": 100} and columns["coat"].null_share == 1 / 3
    assert columns["key"].facets["characters"].maximum == 7 and columns["key"].mix.counts is None
    assert columns["record.age"].nulls == 60 and columns["record.seen"].found == {"date": 240}
    assert columns["tokens"].facets["items"].mean == 2.5
    assert columns["images"].found == {"PNG": 300} and columns["images"].facets["width"].maximum == 8


def test_media_are_measured_by_their_headers() -> None:
    medium = profile_table(rows_of(300)).columns["medium"]
    assert medium.nulls == 75 and medium.found == {"PNG": 75, "WAV": 75, "unreadable": 75}
    assert medium.found_shares()["PNG"] == pytest.approx(1 / 3)
    assert (medium.facets["width"].minimum, medium.facets["width"].maximum) == (4, 8)
    assert medium.facets["seconds"].maximum == pytest.approx(0.07, abs=1e-4)
    assert medium.facets["rate_hz"].mean == 22_050 and medium.facets["bytes"].minimum == len(b"neither")


def test_shards_of_other_columns_do_not_merge() -> None:
    with pytest.raises(ProfileError, match="different columns"):
        profile_table(pa.table({"a": [1]})).merge(profile_table(pa.table({"a": ["1"]})))


def test_every_layer_has_a_profile_beside_its_snapshots(pets: Path, config: Config) -> None:
    result = ingest(config, pets)
    for layer in result.layers:
        path = result.lake / "pets" / "profiles" / f"{layer.layer}-{layer.snapshot}.json"
        stored = Profile.from_json(json.loads(path.read_text())["content"])
        assert {name: table.rows for name, table in stored.tables.items()} == layer.rows
        assert stored == profile_snapshot(open_snapshot(result.lake, "pets", layer.layer, layer.snapshot))


def test_splits_modalities_and_labels_of_silver_and_gold_are_mixed_alike(pets: Path, config: Config) -> None:
    result = ingest(config, pets)
    silver, gold = (
        profile_snapshot(open_snapshot(result.lake, "pets", layer.layer, layer.snapshot)) for layer in result.layers[1:]
    )
    mixes = silver.tables["rows"].mixes()
    assert mixes["split"] == {"train": 20, "heldout": 4}
    assert mixes["modality"] == dict.fromkeys(("image", "audio", "image+audio", "table"), 6)
    assert mixes["label"] == dict.fromkeys(("answer 0", "answer 1", "answer 2"), 8)
    age, coat = (silver.tables["rows"].columns[f"messages.table.{name}"] for name in ("age", "coat"))
    assert (age.rows, age.nulls, age.facets["value"].maximum) == (6, 0, 23)
    assert (coat.rows, coat.nulls, coat.mix.counts) == (6, 0, {"black": 6})
    both = gold.tables["train"].merge(gold.tables["heldout"]).mixes()
    assert (both["modality"], both["label"]) == (mixes["modality"], mixes["label"])


@pytest.mark.parametrize("text", ["{", "7", "[1]", '[{"segments": 3}]', '[{"segments": ["x"]}]', "[" * 9000, "null"])
def test_a_landed_text_that_is_no_conversation_is_a_null_and_no_error(text: str) -> None:
    messages = [text, None, '[{"segments": [{"table": {"n": 1%s, "m": true}}, {"text": 5}]}]' % ("0" * 400)]
    columns = profile_table(pa.table({"messages": messages})).columns
    assert (columns["messages.answer"].nulls, columns["messages.answer"].mix.counts) == (2, {"5": 1})
    assert columns["messages.table.n"].facets["value"].not_finite == 1


def test_a_snapshot_of_several_shards_keeps_its_declared_types_and_empty_tables(tmp_path: Path) -> None:
    """Parquet names the items of a list otherwise than Arrow, so that a shard read back has another type's name."""
    with SnapshotWriter(tmp_path, "pets", "gold") as writer:
        for _ in range(3):
            writer.add("train", rows_of(20))
        writer.declare("heldout", rows_of(1).schema)
    tables = profile_snapshot(writer.snapshot).tables
    assert {name: table.rows for name, table in tables.items()} == {"train": 60, "heldout": 0}
    assert (
        tables["train"].schema == tables["heldout"].schema and "list<item: int32>" in tables["train"].schema["tokens"]
    )


def test_parts_of_a_snapshot_merge_by_table() -> None:
    parts = [Profile("d", "silver", "s", {name: profile_table(rows_of(9))}) for name in ("a", "b", "a")]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    assert {name: table.rows for name, table in merged.tables.items()} == {"a": 18, "b": 9}
    assert Profile.from_json(json.loads(json.dumps(merged.to_json()))) == merged
