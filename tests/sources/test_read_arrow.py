"""Arrow: both IPC formats are read; a broken file is a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from elasmo.sources.source import SourceError
from tests.sources.twelve import bronze, contract, landed, rows, twelve


def write(folder: Path, stream: bool) -> Path:
    folder.mkdir()
    table = pa.Table.from_pylist(twelve())
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(folder / "a.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=4)
    with make(folder / "b.arrow", table.schema):
        pass
    return contract(folder, {"format": "arrow", "path": "*.arrow"})


@pytest.mark.parametrize("stream", [True, False])
def test_both_formats_land_and_an_empty_file_holds_no_row(tmp_path: Path, stream: bool) -> None:
    assert rows(bronze(write(tmp_path / "pets", stream))) == landed()


def test_a_stream_that_is_cut_between_two_batches_is_a_sentence(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", stream=True)
    content = (folder / "a.arrow").read_bytes()
    with pa.ipc.open_stream(content) as reader:
        schema = reader.schema.serialize().size
    ends = [i for i in range(0, len(content) - 8, 8) if content[i : i + 4] == b"\xff\xff\xff\xff" and i >= schema]
    for end in ends:
        (folder / "b.arrow").write_bytes(content[:end])
        with pytest.raises(SourceError, match=r"b\.arrow is not an Arrow file that can be read"):
            bronze(folder)
    assert len(ends) >= 3


def test_offsets_that_leave_a_column_are_refused_before_arrow_follows_them(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", stream=False)
    with pa.ipc.new_file(folder / "b.arrow", pa.schema([("picture", pa.binary())])) as file:
        file.write_batch(pa.record_batch({"picture": pa.array([b"abc", b"defgh"])}))
    content = (folder / "b.arrow").read_bytes()
    offsets, wild = (np.array(ends, np.int32).tobytes() for ends in ((0, 3, 8), (0, 2**30, 8)))
    assert content.count(offsets) == 1
    (folder / "b.arrow").write_bytes(content.replace(offsets, wild))
    with pytest.raises(SourceError, match=r"b\.arrow is not an Arrow file that can be read"):
        bronze(folder)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kept", [0, 3, 200, -400])
def test_a_cut_file_is_a_sentence_that_names_it(tmp_path: Path, stream: bool, kept: int) -> None:
    folder = write(tmp_path / "pets", stream)
    (folder / "b.arrow").write_bytes((folder / "a.arrow").read_bytes()[:kept])
    with pytest.raises(SourceError, match=r"^b\.arrow is not an? (Arrow )?file that can be read"):
        bronze(folder)


def test_a_value_that_python_cannot_hold_is_a_fault_of_its_row(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", stream=False)
    table = pa.Table.from_pylist(twelve()).drop(["caption", "number"])
    texts = pa.array([b"\xff" if n == 3 else b"text" for n in range(12)]).cast(pa.binary())
    times = pa.array([2**62 if n == 4 else 0 for n in range(12)], pa.timestamp("s"))
    broken = pa.StringArray.from_buffers(12, texts.buffers()[1], texts.buffers()[2])
    table = table.append_column("caption", broken).append_column("number", times)
    for name, make in (("b.arrow", pa.ipc.new_file), ("a.arrow", pa.ipc.new_stream)):
        with make(folder / name, table.schema) as file:
            file.write_table(table)
    faults = [row["landing fault"] for row in bronze(folder).read_all("pets").to_pylist()]
    assert [fault for fault in faults if fault][::2] == [
        "a.arrow:4: caption is not valid UTF-8 text",
        "b.arrow:4: caption is not valid UTF-8 text",
    ]
    assert all("number is a timestamp[s] that cannot be read" in fault for fault in faults if fault and ":5:" in fault)
    assert sum(fault is not None for fault in faults) == 4
