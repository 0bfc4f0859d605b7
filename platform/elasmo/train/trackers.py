"""Where metrics go besides the run log: TensorBoard event files, Weights & Biases, MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from elasmo.config import Config, ConfigError, dump


class Tracker(Protocol):
    """Takes scalars by name at a step."""

    def scalars(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files under the run folder."""

    def __init__(self, folder: Path, config: Config) -> None:
        # The pure-Python writer: torch's needs no TensorFlow either, and stays where torch is.
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(folder))
        self._writer.add_text("config", f"```yaml\n{dump(config)}\n```")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A Weights & Biases run; resumed under the same id after a restart."""

    def __init__(self, project: str, run_id: str, config: Config) -> None:
        wandb = _import("wandb", "train.log.wandb")
        self._run = wandb.init(project=project, id=run_id, resume="allow", config=config.model_dump(mode="json"))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """An MLflow run at a tracking URI."""

    def __init__(self, uri: str, run_id: str, config: Config) -> None:
        self._mlflow = _import("mlflow", "train.log.mlflow")
        self._mlflow.set_tracking_uri(uri)
        self._mlflow.set_experiment(config.name)
        self._mlflow.start_run(run_name=run_id)
        self._mlflow.log_text(dump(config), "config.yaml")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        # MLflow allows no `+` in metric names.
        self._mlflow.log_metrics({name.replace("+", " and "): value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


def open_trackers(config: Config, folder: Path, run_id: str) -> list[Tracker]:
    """The trackers that `train.log` names.

    Raises:
        ConfigError: a named tracker's package is not installed.
    """
    log = config.train.log
    trackers: list[Tracker] = []
    if log.tensorboard:
        trackers.append(TensorBoard(folder / "tensorboard", config))
    if log.wandb is not None:
        trackers.append(Wandb(log.wandb, run_id, config))
    if log.mlflow is not None:
        trackers.append(Mlflow(log.mlflow, run_id, config))
    return trackers


def _import(package: str, key: str) -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError:
        raise ConfigError(
            f"{key} is set but {package} is not installed; pip install {package}, or set it to null."
        ) from None
