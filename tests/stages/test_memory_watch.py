"""The peak of memory, of this process and of children."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from elasmo.stages import memory_watch
from elasmo.stages.memory_watch import MemoryWatch, children_of, machine_bytes, resident_bytes

MIB = 1 << 20


def test_memory_that_is_gone_again_counts() -> None:
    before = resident_bytes(os.getpid())
    with MemoryWatch() as watch:
        held = bytearray(b"x") * (96 * MIB)
        time.sleep(3 * memory_watch.EVERY_S)
        del held
    assert watch.peak_bytes is not None and watch.peak_bytes >= before + 90 * MIB
    assert watch.method.startswith(("VmHWM", "RSS of the process tree"))


def test_a_child_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "CHILDREN_EVERY", 1)
    code = f"import time; held = bytearray(b'x') * ({80 * MIB}); print('held', flush=True); time.sleep(30)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"held\n"
        assert child.pid in children_of(os.getpid())
        with MemoryWatch() as watch:
            time.sleep(0.01)
        child.kill()
    own = resident_bytes(os.getpid())
    assert watch.peak_bytes is not None and watch.peak_bytes >= own + 70 * MIB


def test_what_cannot_be_read_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]) -> None:
    monkeypatch.setattr(memory_watch, "PROC", memory_watch.Path(tmp_path))
    with MemoryWatch() as watch:
        pass
    assert watch.peak_bytes is None and watch.method == "unknown: no /proc here"
    assert resident_bytes(os.getpid()) == 0 and children_of(os.getpid()) == []


def test_the_machine_has_more_than_this_process_uses() -> None:
    size = machine_bytes()
    assert size is not None and size > resident_bytes(os.getpid())
