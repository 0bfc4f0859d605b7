"""Conversion holds one tensor at a time: its memory stays below the largest weight file, whatever the model's size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

MEASURED = """
import sys, threading, time
from pathlib import Path
from elasmo.model.hugging_face import export_model, import_model
from safetensors.torch import load_file

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))

def peak(work):
    highest, done = [anonymous()], threading.Event()
    def watch():
        while not done.is_set():
            highest[0] = max(highest[0], anonymous())
            time.sleep(0.001)
    start = highest[0]
    watcher = threading.Thread(target=watch)
    watcher.start()
    held = work()
    done.set()
    watcher.join()
    return highest[0] - start

hf, ours, back, small = map(Path, sys.argv[1:])
import_model(small, ours)  # loads what torch loads late, whatever the model's size
print(peak(lambda: import_model(hf, ours, replace=True)))
print(peak(lambda: export_model(ours, back, 30_000_000)))
print(peak(lambda: [{k: v.clone() for k, v in load_file(p).items()} for p in hf.glob("*.safetensors")]))
"""


@pytest.mark.full
def test_import_and_export_need_less_memory_than_the_largest_weight_file(tmp_path: Path) -> None:
    shape = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "vocab_size": 8000}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=8))
    model.save_pretrained(tmp_path / "hf", max_shard_size="40MB")
    sizes = [path.stat().st_size for path in (tmp_path / "hf").glob("*.safetensors")]
    assert len(sizes) >= 4
    LlamaForCausalLM(LlamaConfig(**{**shape, "vocab_size": 8}, num_hidden_layers=1)).save_pretrained(tmp_path / "small")
    folders = [str(tmp_path / name) for name in ("hf", "ours", "back", "small")]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *folders], capture_output=True, text=True, check=True, timeout=200
    )
    imported, exported, whole = map(int, done.stdout.split())
    assert max(imported, exported) <= 1.4 * max(sizes)  # the allocator keeps some of what was freed
    assert whole > 2 * max(sizes)  # a conversion that loads the model would have been seen
    print(f"import {imported / 1e6:.0f} MB, export {exported / 1e6:.0f} MB, largest {max(sizes) / 1e6:.0f} MB")
