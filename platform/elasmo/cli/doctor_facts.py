"""Reads from this machine the facts that `elasmo doctor` judges; changes nothing but a probe file it deletes."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

import elasmo
from elasmo.cli.doctor_checks import MIB, Facts, pins
from elasmo.config import Config

DASHBOARD_PORT = 8265
ENV_NAMES = ("DS_ACCELERATOR", "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def gather(config: Config, env: Mapping[str, str] | None = None) -> Facts:
    """The facts about this machine that matter to `config`. Imports torch: a few seconds."""
    env = os.environ if env is None else env
    torch_error, torch_cuda, gpus = _torch()
    installed: dict[str, str] = {
        canonicalize_name(d.name): d.version for d in importlib.metadata.distributions() if d.name
    }
    ray_temp = Path(env.get("RAY_TMPDIR") or env.get("TMPDIR") or "/tmp") / "ray"
    storage = Path(config.train.storage)
    storage_error = _write_error(storage)
    wanted = {config.serve.port: "serve", DASHBOARD_PORT: "dashboard"}
    return Facts(
        python=sys.version_info[:3],
        installed=installed,
        requirements=_requirements(),
        tested=_tested(),
        env={name: env[name] for name in ENV_NAMES if name in env},
        torch_error=torch_error,
        torch_cuda=torch_cuda,
        gpus=gpus,
        nvidia_driver=Path("/proc/driver/nvidia/version").exists(),
        torchvision_error=_import_error("torchvision") if "torchvision" in installed else None,
        build_locks=_build_locks(env),
        ray_temp=str(ray_temp),
        ray_temp_writable=_write_error(ray_temp) is None,
        ray_running=_answers(ray_temp / "ray_current_cluster"),
        ray_token=(Path.home() / ".ray" / "auth_token").exists(),
        object_store_bytes=config.ray.object_store_mb
        * MIB
        * (config.ray.nodes if config.ray.address == "local" else 1),
        shm_free_bytes=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None,
        memory_free_bytes=_memory_free_bytes(),
        cores=_cores(),
        busy_ports={port: who for port, who in wanted.items() if not _port_is_free(config.serve.host, port)},
        serve_port=config.serve.port,
        dashboard_port=DASHBOARD_PORT,
        storage=str(storage),
        storage_error=storage_error,
        storage_free_bytes=shutil.disk_usage(_existing(storage)).free,
        espeak_error=_espeak_error() if "espeakng-loader" in installed else None,
    )


def _requirements() -> list[str]:
    try:
        return importlib.metadata.requires("elasmo") or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _tested() -> dict[str, str]:
    path = Path(elasmo.__file__).resolve().parents[2] / "constraints.txt"
    return pins(path.read_text()) if path.is_file() else {}


def _torch() -> tuple[str | None, str | None, list[str]]:
    error = _import_error("torch")
    if error:
        return error, None, []
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return None, torch.version.cuda, [torch.cuda.get_device_name(index) for index in range(count)]


def _import_error(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except Exception as error:  # an extension that fails to load raises whatever it likes
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    return None


def _build_locks(env: Mapping[str, str]) -> dict[str, float]:
    root = Path(env.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")
    now = time.time()
    return {str(lock): now - lock.stat().st_mtime for pattern in ("*/lock", "*/*/lock") for lock in root.glob(pattern)}


def _existing(path: Path) -> Path:
    """The nearest folder at or above `path` that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _write_error(folder: Path) -> str | None:
    folder = folder.absolute()
    if folder.exists() and not folder.is_dir():
        return "it is a file"
    try:
        with tempfile.TemporaryFile(dir=_existing(folder)):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _memory_free_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    try:  # a container's limit, where it is lower (control groups version 2)
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        return min(free, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        return free


def _cores() -> float:
    available = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(available, int(quota) / int(period))
    except (OSError, ValueError):
        return available


def _answers(address_file: Path) -> bool:
    """Whether the cluster that `ray start` noted in the file still takes connections; a killed one leaves the file."""
    try:
        host, _, port = address_file.read_text().strip().rpartition(":")
        with socket.create_connection((host, int(port)), timeout=0.5):
            return True
    except (OSError, ValueError):
        return False


def _port_is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _espeak_error() -> str | None:
    error = _import_error("espeakng_loader")
    if error:
        return error
    import espeakng_loader

    try:
        ctypes.CDLL(espeakng_loader.get_library_path())
    except OSError as refused:
        return str(refused)
    return None if Path(espeakng_loader.get_data_path()).is_dir() else "its voice data is missing"
