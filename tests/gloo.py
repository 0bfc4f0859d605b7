"""Runs a function on several gloo ranks, each a process forked from a server that has torch and DeepSpeed loaded."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

# DeepSpeed warns of names that torch is about to rename, once a process and collective.
os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["elasmo.train.checkpoint"])


class RankFailed(AssertionError):
    """A rank raised; the message is its traceback."""


def run_ranks(world: int, function: Callable[..., Any], *args: Any, deadline_s: float = 120.0) -> list[Any]:
    """Calls `function(rank, world, *args)` on `world` ranks joined by gloo and returns their results in rank order."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world):
            ours, theirs = _context.Pipe(duplex=False)
            process = _context.Process(target=_rank, args=(theirs, rank, world, folder, function, args), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            return _collect(pipes, deadline_s)
        finally:
            for process in processes:
                process.kill()
                process.join(10)


def _collect(pipes: list[Connection], deadline_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = wait(waiting, deadline_s)
        if not ready:
            raise RankFailed(
                f"no rank answered within {deadline_s} s; missing {sorted(set(range(len(pipes))) - set(results))}"
            )
        for pipe in ready:
            rank = pipes.index(pipe)
            failed, value = pipe.recv()
            if failed:
                raise RankFailed(f"rank {rank}:\n{value}")
            results[rank] = value
    return [results[rank] for rank in range(len(pipes))]


def _rank(
    pipe: Connection, rank: int, world: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{Path(folder) / 'rendezvous'}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=60),
        )
        pipe.send((False, function(rank, world, *args)))
        dist.barrier()
    except BaseException:
        pipe.send((True, traceback.format_exc()))
