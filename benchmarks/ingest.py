"""Decode-to-tensor throughput: gold rows into a training process, by Elasmo's two engines and by others' loaders.

    apt-get install tuxpaint-stamps-default
    elasmo ingest data/stamps -c pipelines/stamps.yaml data.lake=/tmp/stamps
    pip install webdataset && python benchmarks/ingest.py -c pipelines/stamps.yaml data.lake=/tmp/stamps

Prints the table of ingest.md. Every loader reads the same rows and decodes them with the same code (pictures to pixels,
recordings to log-mel frames, text to tokens), one decoding process beside the reading one, 16 rows a micro-batch; what
differs is how rows are found, ordered and handed over. CPU is user and system time of all processes that belong to it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import statistics
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
import torch.utils.data

from elasmo.config import Config, load
from elasmo.data.gold import Gold, unpack_messages
from elasmo.data.plan import StepPlan
from elasmo.data.stream import TRAIN, PlanDataConfig, direct, from_shard, make_plan, open_gold
from elasmo.model.encoded import Encoded
from elasmo.parallel import planner

MICRO_BATCH, STEPS = 16, 111
Loader = Callable[[], Iterator[int]]
"""Yields the rows of each micro-batch as it arrives."""


@ray.remote(num_cpus=0)
class Window:
    """Says from which step the stream is read, as a run's state does."""

    def window(self) -> tuple[int, int]:
        return 1, 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-c", "--config")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sizes = ["train.global_batch=64", f"train.micro_batch={MICRO_BATCH}", f"train.stop_after={STEPS}"]
    config = load(options.config, [*options.overrides, *sizes])
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    gold = open_gold(config)
    plan = make_plan(config, gold)
    with tempfile.TemporaryDirectory() as folder:
        loaders = {
            "Elasmo, direct": functools.partial(by_direct, config),
            "Elasmo, Ray stream": functools.partial(by_ray_stream, config),
            "torch DataLoader": functools.partial(by_torch, config, plan),
            "WebDataset": functools.partial(by_webdataset, config, write_tars(config, plan, Path(folder))),
            "plain Ray Data": functools.partial(by_plain_ray, config, plan),
        }
        found: dict[str, list[tuple[float, float, float, int]]] = {name: [] for name in loaders}
        for turn in range(options.rounds + 1):  # the first round warms files, imports and Ray's worker processes
            for name, loader in loaders.items():
                figures = measure(loader)
                if turn:
                    found[name].append(figures)
    print(f"gold {gold.snapshot} of {gold.name}, {MICRO_BATCH * STEPS * 4} rows, medians of {options.rounds}")
    print("| loader | rows | seconds | rows/s | CPU-ms/row | first micro-batch, s |\n|---|---|---|---|---|---|")
    for name, rounds in found.items():
        seconds, cpu, first = (sorted(figures[at] for figures in rounds) for at in range(3))
        rows = rounds[0][3]
        print(
            f"| {name} | {rows} | {statistics.median(seconds):.2f} ({seconds[0]:.2f}-{seconds[-1]:.2f}) "
            f"| {rows / statistics.median(seconds):.0f} | {1e3 * statistics.median(cpu) / rows:.2f} "
            f"({1e3 * cpu[0] / rows:.2f}-{1e3 * cpu[-1] / rows:.2f}) | {statistics.median(first):.2f} |"
        )


def measure(loader: Loader) -> tuple[float, float, float, int]:
    """Seconds, CPU seconds, seconds to the first micro-batch, rows."""
    clock = CpuClock()
    began, first, rows = time.perf_counter(), 0.0, 0
    for count in loader():
        first = first or time.perf_counter() - began
        rows += count
    seconds = time.perf_counter() - began
    return seconds, clock.stop(), first, rows


class CpuClock:
    """CPU seconds of this process and of all below it, seen every 20 ms: some do not live to the end."""

    def __init__(self) -> None:
        self._first: dict[psutil.Process, float] = {}
        self._last: dict[psutil.Process, float] = {}
        self._look()
        self._first = dict(self._last)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> float:
        self._ended.set()
        self._thread.join()
        self._look()
        return sum(seconds - self._first.get(process, 0.0) for process, seconds in self._last.items())

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            self._look()

    def _look(self) -> None:
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._last[process] = sum(process.cpu_times()[:2])


def by_direct(config: Config) -> Iterator[int]:
    gold = open_gold(config)
    for slot in direct(make_plan(config, gold), gold, 0, 1, 0, STEPS):
        yield len(slot.samples)


def by_ray_stream(config: Config) -> Iterator[int]:
    window = Window.options(name="window", namespace="benchmark").remote()
    ray.get(window.window.remote())
    readers = functools.partial(planner.slot_readers, config.train)
    data = PlanDataConfig(config, "window", "benchmark", readers)
    for slot in from_shard(data.configure({}, 1, None, None)[0][TRAIN]):
        yield len(slot.samples)
    ray.kill(window)


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The plan's rows as a map-style dataset."""

    def __init__(self, config: Config, row_ids: list[int]) -> None:
        self.config, self.row_ids = config, row_ids
        self.gold: Any = None

    def __len__(self) -> int:
        return len(self.row_ids)

    def __getitem__(self, place: int) -> Encoded:
        self.gold = self.gold or open_gold(self.config)
        encoded: Encoded = self.gold.read([self.row_ids[place]])[0].encoded
        return encoded


def by_torch(config: Config, plan: StepPlan) -> Iterator[int]:
    rows = Rows(config, planned(plan))
    for batch in torch.utils.data.DataLoader(rows, MICRO_BATCH, num_workers=1, collate_fn=list):
        yield len(batch)


def by_webdataset(config: Config, shards: list[str]) -> Iterator[int]:
    import webdataset

    gold = open_gold(config)
    decode = functools.partial(from_tar, gold.processor(), gold.golds[0].limits)
    data = webdataset.WebDataset(shards, shardshuffle=False).shuffle(1000).map(decode).batched(MICRO_BATCH, list)
    for batch in torch.utils.data.DataLoader(data, None, num_workers=1):
        yield len(batch)


def by_plain_ray(config: Config, plan: StepPlan) -> Iterator[int]:
    gold = open_gold(config).golds[0]
    shards = sorted({int(shard) for step in range(STEPS) for shard in plan.index.shard[plan.rows(step)]})
    files = [str(gold.path / gold._snapshot.shards("train")[shard]["file"]) for shard in shards]
    data = ray.data.read_parquet(files).select_columns(["messages", "images", "audio"]).limit(MICRO_BATCH * STEPS * 4)
    data = data.map_batches(FromParquet, fn_constructor_args=(config,), batch_size=MICRO_BATCH, compute=one_actor())
    for batch in data.iter_batches(batch_size=MICRO_BATCH, batch_format="pyarrow"):
        yield len([Encoded.from_row(row) for row in batch.to_pylist()])


def one_actor() -> Any:
    return ray.data.ActorPoolStrategy(size=1)


class FromParquet:
    """Decodes the stored rows of a batch."""

    def __init__(self, config: Config) -> None:
        gold = open_gold(config)
        self.processor, self.limits = gold.processor(), gold.golds[0].limits

    def __call__(self, batch: dict[str, Any]) -> Any:
        import pyarrow

        stored = zip(batch["messages"], batch["images"], batch["audio"], strict=True)
        rows = [self.processor.encode_chat(unpack_messages(*row), self.limits).to_row() for row in stored]
        return pyarrow.Table.from_pylist(rows)


def planned(plan: StepPlan) -> list[int]:
    return [row for step in range(STEPS) for slot in plan.slots(step) for row in slot.row_ids]


def write_tars(config: Config, plan: StepPlan, folder: Path) -> list[str]:
    """The plan's rows as WebDataset shards: messages as JSON, each medium a member."""
    gold: Gold = open_gold(config).golds[0]
    shards: list[str] = []
    for number in range(0, STEPS * 64, 512):
        path = folder / f"{number:06d}.tar"
        with tarfile.open(path, "w") as tar:
            for row_id in planned(plan)[number : number + 512]:
                shard, place = gold._place(row_id)
                row = gold._shard(shard).slice(place, 1).to_pylist()[0]
                add(tar, f"{row_id:08d}.messages", row["messages"].encode())
                for kind in ("images", "audio"):
                    for at, content in enumerate(row[kind]):
                        add(tar, f"{row_id:08d}.{kind}{at}", content)
        shards.append(str(path))
    return shards


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def from_tar(processor: Any, limits: Any, sample: dict[str, Any]) -> Encoded:
    media = {
        kind: [sample[f"{kind}{at}"] for at in range(8) if f"{kind}{at}" in sample] for kind in ("images", "audio")
    }
    messages = unpack_messages(json.dumps(json.loads(sample["messages"])), media["images"], media["audio"])
    encoded: Encoded = processor.encode_chat(messages, limits)
    return encoded


if __name__ == "__main__":
    main()
