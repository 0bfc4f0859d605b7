"""Prints how far the loss curves of two runs are apart: `python benchmarks/compare_losses.py RUN OTHER`."""

from __future__ import annotations

import sys
from pathlib import Path

from elasmo.train.run_folder import events

BANDS = 5


def main(run: Path, other: Path) -> None:
    ours, theirs = ({event["step"]: event["loss"] for event in events(path, "step")} for path in (run, other))
    steps = sorted(set(ours) & set(theirs))
    if not steps:
        sys.exit(f"{run} and {other} have no committed step in common.")
    print(f"{'steps':>12}  largest relative difference of the loss")
    size = -(-len(steps) // BANDS)
    for band in (steps[i : i + size] for i in range(0, len(steps), size)):
        worst = max(abs(ours[step] - theirs[step]) / abs(theirs[step]) for step in band)
        print(f"{band[0]:>5}-{band[-1]:<6}  {worst:.2e}")
    print(f"last step {steps[-1]}: {ours[steps[-1]]:.6f} and {theirs[steps[-1]]:.6f}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
