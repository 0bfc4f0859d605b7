"""What the gate says of a snapshot: one verdict for each check, with its numbers, its thresholds and a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["pass", "warn", "block"]
SEVERITY: dict[Verdict, int] = {"pass": 0, "warn": 1, "block": 2}


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        name: which, such as `drift`.
        subject: the table, or `table.column`.
        verdict: pass, warn or block.
        numbers: what was measured.
        thresholds: what it was held against, as `psi.block`; None where switched off.
        sentence: what was found.
    """

    name: str
    subject: str
    verdict: Verdict
    numbers: Mapping[str, float]
    thresholds: Mapping[str, float | None]
    sentence: str


@dataclass(frozen=True)
class GateReport:
    """All checks of a snapshot, and who accepted it in spite of those that block."""

    snapshot: str
    predecessor: str | None
    checks: tuple[Check, ...]
    accepted: str | None = None

    @property
    def verdict(self) -> Verdict:
        return max((check.verdict for check in self.checks), key=SEVERITY.__getitem__, default="pass")

    @property
    def opens(self) -> bool:
        """Whether gold may be made."""
        return self.verdict != "block" or self.accepted is not None

    def sentences(self, verdict: Verdict) -> list[str]:
        return [check.sentence for check in self.checks if check.verdict == verdict]

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "verdict": self.verdict, "checks": [vars(check) for check in self.checks]}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> GateReport:
        kept = {key: value for key, value in tree.items() if key != "verdict"}
        return cls(**{**kept, "checks": tuple(Check(**check) for check in tree["checks"])})
