"""What a check of a dataset folder found: a sentence with its file and line, and whether ingestion would refuse it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One sentence about a file.

    Attributes:
        level: `error` for what ingestion refuses, `warning` for what it passes over.
        path: the file.
        line: from 1; None where the whole file is meant.
        text: the sentence.
    """

    level: Level
    path: Path
    line: int | None
    text: str

    def __str__(self) -> str:
        place = str(self.path) if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.level}: {self.text}"
