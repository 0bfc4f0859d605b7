"""Profiles and verdicts in the lake, and the gate at work: which snapshot is the predecessor, what was accepted.

They lie in `<lake>/<dataset>/profiles/`, as `<layer>-<snapshot>.json` and `silver-<snapshot>.gate.json`: beside the
snapshots, whose ids stay the addresses of data alone. Both can be deleted; a profile is then computed again.
"""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from elasmo.data.manifest import Snapshot, SnapshotError, latest, open_snapshot, replace_text
from elasmo.ingest.gate import GateError, judge
from elasmo.ingest.gate_report import Check, GateReport
from elasmo.ingest.near_rows import NearFound
from elasmo.ingest.profile import Profile
from elasmo.ingest.profiling import profile_snapshot
from elasmo.ingest.repeat import find_repeats
from elasmo.sources.contract import Contract, TableSpec

FOLDER = "profiles"
FORMAT = 1


def profile_path(snapshot: Snapshot) -> Path:
    return snapshot.path.parent.parent / FOLDER / f"{snapshot.manifest['layer']}-{snapshot.id}.json"


def gate_path(snapshot: Snapshot) -> Path:
    return profile_path(snapshot).with_suffix(".gate.json")


def profile_of(snapshot: Snapshot) -> Profile:
    """The stored profile of a snapshot; computed and stored where there is none, or one of another format.

    Raises:
        SnapshotError: a shard that is absent or damaged.
    """
    stored = _read(profile_path(snapshot))
    if stored is not None:
        return Profile.from_json(stored)
    profile = profile_snapshot(snapshot)
    _write(profile_path(snapshot), profile.to_json())
    return profile


def report_of(snapshot: Snapshot) -> GateReport | None:
    """The stored verdict on a silver snapshot, None where it was never judged."""
    stored = _read(gate_path(snapshot))
    return None if stored is None else GateReport.from_json(stored)


def pass_gate(
    silver: Snapshot, bronze: Snapshot, contract: Contract, tables: Mapping[str, TableSpec], accept: bool
) -> GateReport:
    """Judges a silver snapshot against the one ingested before it and stores the verdict.

    A snapshot that is the latest already keeps the verdict it got: its id vouches for data and contract alike.

    Args:
        accept: lets a blocked snapshot through; who and when is stored with the verdict.

    Raises:
        GateError: a check blocks and nobody accepts.
    """
    lake, profile = silver.path.parents[2], profile_of(silver)
    earlier = latest(lake, contract.name, "silver")
    stored = report_of(silver)
    if earlier == silver.id and stored is not None and stored.opens:
        return stored
    before, problem = _predecessor(lake, contract.name, None if earlier == silver.id else earlier)
    landed = sum(bronze.tables().values())
    repeats = find_repeats(silver, tables)
    near = {kind: NearFound.from_json(found) for kind, found in silver.details.get("near", {}).items()}
    report = judge(profile, before, contract, tables, repeats, landed, int(silver.details["refused"]), near)
    if problem is not None:
        report = replace(report, checks=(problem, *report.checks))
    if report.verdict == "block" and accept:
        report = replace(report, accepted=f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} by {_person()}")
    _write(gate_path(silver), report.to_json())
    if not report.opens:
        raise GateError(
            f"Silver snapshot {silver.id} of {contract.name} is blocked and no gold is made; mend the data, set "
            "`gates` in its contract, or accept it with `elasmo ingest --accept`; "
            f"`elasmo profile {contract.name} --snapshot {silver.id}` shows it.\n"
            + "\n".join(report.sentences("block"))
        )
    return report


def _predecessor(lake: Path, dataset: str, snapshot: str | None) -> tuple[Profile | None, Check | None]:
    if snapshot is None:
        return None, None
    try:
        return profile_of(open_snapshot(lake, dataset, "silver", snapshot)), None
    except SnapshotError as error:
        sentence = f"There is no predecessor to compare with: {error}"
        return None, Check("predecessor", dataset, "warn", {}, {}, sentence)


def _person() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container whose user id has no name
        return "an unnamed user"


def _read(path: Path) -> Any:
    """The content of a stored file, None where it is absent, unreadable or of another format."""
    try:
        tree = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return tree["content"] if isinstance(tree, dict) and tree.get("format") == FORMAT else None


def _write(path: Path, content: Any) -> None:
    replace_text(path, json.dumps({"format": FORMAT, "content": content}, allow_nan=False))
