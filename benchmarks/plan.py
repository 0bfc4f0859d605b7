"""What it costs to find one step: in a plan of ten million rows, and in the log of a run of a million steps.

    python benchmarks/plan.py

Prints the figures at the end of ingest.md.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from elasmo.data.index import GoldIndex
from elasmo.data.plan import StepPlan
from elasmo.train.trace import find_event

ROWS, STEPS = 10_000_000, 1_000_000


def main() -> None:
    random = np.random.default_rng(0)
    costs = np.zeros((ROWS, 4), np.uint16)
    costs[:, 0], costs[:, 1] = random.integers(20, 2000, ROWS), random.integers(0, 1000, ROWS)
    shard, modality = (np.arange(ROWS) // 512).astype(np.int32), np.zeros(ROWS, np.int8)
    index = GoldIndex("virtual", np.arange(ROWS), shard, ("text",), modality, costs, np.ones(ROWS, np.uint16))
    began = time.perf_counter()
    plan = StepPlan(index, 0, 256, 16)
    print(f"{ROWS:,} rows: index {index.nbytes / 1e6:.0f} MB, plan made in {time.perf_counter() - began:.2f} s")
    gc.freeze()  # else a collection of all that numpy and torch have imported falls into one of the steps: 80 ms
    milliseconds = []
    for step in random.integers(0, 10**7, 60):
        began = time.process_time()  # of one thread; a busy neighbour does not count
        plan.slots(int(step))
        milliseconds.append(1e3 * (time.process_time() - began))
    print(f"slots of a step, CPU: median {statistics.median(milliseconds):.1f} ms, largest {max(milliseconds):.1f} ms")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        event = {"time": 1.0, "event": "step", "attempt": 1, "step": 0, "loss": 0.1, "per_rank": "x" * 700}
        line = json.dumps(event) + "\n"
        with log.open("w") as file:
            file.writelines(line.replace('"step": 0', f'"step": {step}') for step in range(1, STEPS + 1))
        for step in (1, STEPS // 2, STEPS):
            began = time.perf_counter()
            assert find_event(log, "step", step) is not None
            size = log.stat().st_size / 1e6
            print(f"step {step:,} in a log of {STEPS:,} ({size:.0f} MB): {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
