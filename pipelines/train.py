"""Trains on the Ray cluster that runs this script: `ray job submit -- python pipelines/train.py --config FILE`."""

import argparse
import sys
from pathlib import Path

from elasmo.cli.main import mistake
from elasmo.config import dump, load
from elasmo.data.gold import GoldError
from elasmo.data.stream import open_gold
from elasmo.ingest.ingest import ingest
from elasmo.train import fit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="pipelines/digits.yaml")
    parser.add_argument("--run", help="an unfinished run to take up")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    try:
        config = load(arguments.config, arguments.overrides)
        print(dump(config))
        try:
            open_gold(config)
        except GoldError:
            ingest(config, Path(config.data.dataset))
        result = fit(config, run_id=arguments.run)
    except ValueError as error:
        sentence = mistake(error)
        if sentence is None:
            raise
        print(sentence, file=sys.stderr)
        return 2
    print(f"run {result.run_id}: {result.steps} steps in {result.seconds:.1f} s, folder {result.folder}")
    print(f"receipts match the plan: {result.receipts.match}; resizes: {len(result.resizes)}")
    if result.evaluation is not None:
        print("held-out accuracy: " + ", ".join(f"{k} {v:.3f}" for k, v in result.evaluation["accuracy"].items()))
    return 0 if result.receipts.match else 1


if __name__ == "__main__":
    sys.exit(main())
