"""`elasmo export-iceberg` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasmo.cli.main import app
from elasmo.config import Config
from elasmo.data.manifest import SnapshotError
from elasmo.ingest.ingest import ingest
from tests.pets import config, pets  # noqa: F401


def test_the_latest_snapshot_of_a_layer_is_exported_and_an_absent_one_refused(
    pets: Path,  # noqa: F811
    config: Config,  # noqa: F811
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyiceberg")
    result, lake = ingest(config, pets), f"data.lake={config.data.lake}"
    arguments = ["export-iceberg", str(pets), lake, "--layer", "silver"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "pets.silver_rows  24 rows\n" in done.output
    assert f"exported silver {result.layers[1].snapshot} of pets to {tmp_path / 'iceberg'}" in done.output
    again = CliRunner().invoke(app, [*arguments, "--warehouse", str(tmp_path / "iceberg")])
    assert "pets.silver_rows  24 rows stood already" in again.output
    absent = CliRunner().invoke(app, ["export-iceberg", "cows", lake])
    assert isinstance(absent.exception, SnapshotError) and "elasmo ingest" in str(absent.exception)
