"""A process that keeps freed memory does not fetch it again."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from elasmo.train.host_memory import keep_freed_memory
torch.set_num_threads(1)
assert keep_freed_memory()
def work():
    blocks = [torch.ones(16 << 20, dtype=torch.uint8) for _ in range(12)]  # more than malloc keeps by itself
for _ in range(5):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 5 * 12 * (16 << 20) // 4096


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_pages_are_fetched_once() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < PAGES / 20
