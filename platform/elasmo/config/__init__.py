"""One typed configuration tree: YAML in, environment and command-line overrides, unknown keys refused."""

from elasmo.config.load import ConfigError, dump, load
from elasmo.config.tree import (
    AudioConfig,
    Config,
    DataConfig,
    DecoderConfig,
    EngineConfig,
    LimitsConfig,
    LogConfig,
    ModelConfig,
    PoolConfig,
    RayConfig,
    ServeConfig,
    TableConfig,
    TrainConfig,
    VisionConfig,
    WorkersConfig,
)

__all__ = [
    "AudioConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "DecoderConfig",
    "EngineConfig",
    "LimitsConfig",
    "LogConfig",
    "ModelConfig",
    "PoolConfig",
    "RayConfig",
    "ServeConfig",
    "TableConfig",
    "TrainConfig",
    "VisionConfig",
    "WorkersConfig",
    "dump",
    "load",
]
