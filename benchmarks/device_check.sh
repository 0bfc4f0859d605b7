#!/usr/bin/env bash
# On a machine with one CUDA device and PyTorch for it: installs what is missing into a virtual environment that sees
# the system's torch, then runs the check. At most 8 minutes on one H200.
set -euo pipefail
cd "$(dirname "$0")/.."
python3 -m venv --system-site-packages .device
.device/bin/pip install --quiet -e ".[dev]"
PYTHONPATH=platform exec timeout 480 .device/bin/python benchmarks/device_check.py
