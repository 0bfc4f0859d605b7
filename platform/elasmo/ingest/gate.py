"""The gate between silver and gold: a snapshot's profile against its predecessor's and against the contract.

Pure: profiles, counts and thresholds in, a verdict with its numbers out. A drift blocks only where it is large (PSI, KS
distance or Cramér's V over their thresholds) and more than chance (p below `alpha`): rows that did not change, or a few
more of the same, pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from elasmo.content.drift import chi2_of_mixes, ks_of_numbers, outside, psi_of_mixes, psi_of_numbers
from elasmo.content.sketch import Numbers
from elasmo.ingest.gate_report import SEVERITY, Check, GateReport, Verdict
from elasmo.ingest.near_rows import NearFound
from elasmo.ingest.profile import ColumnProfile, Profile, TableProfile
from elasmo.ingest.repeat import Repeats
from elasmo.measure import units
from elasmo.sources.contract import Column, Contract, Gates, RecordField, TableSpec, Threshold
from elasmo.sources.marks import is_near_mark

FEW = 10
"""Rows for each distinct value, from which a column counts as one of categories."""


class GateError(ValueError):
    """A snapshot that may not become gold: one sentence for each check that blocks it, and the mend."""


def judge(
    profile: Profile,
    before: Profile | None,
    contract: Contract,
    tables: Mapping[str, TableSpec],
    repeats: Repeats,
    landed: int,
    refused: int,
    near: Mapping[str, NearFound] | None = None,
) -> GateReport:
    """Holds a silver snapshot against the contract and, if there is one, the snapshot before it.

    Args:
        tables: the source's tables; the contract of a `files` source declares none.
        landed: rows of bronze, of which `refused` are in quarantine.
        near: near duplicates of each kind.
    """
    gates = contract.gates
    checks = [*_repeats(repeats, gates), *_near(near or {}, gates)]
    share = refused / max(1, landed)
    text = f"{refused} of {landed} landed rows ({units.percent(share)}) are in quarantine"
    checks.append(_measured("refused", contract.name, share, gates.refused, text, _may_block(gates, landed)))
    for name, spec in tables.items():
        table = profile.tables.get(name, TableProfile())
        checks += _contract(name, table, spec, contract)
        if before is not None and name in before.tables:
            checks += _table(name, before.tables[name], table, spec, gates)
    if before is not None:
        gone = [name for name in before.tables if name not in profile.tables]
        checks += [_schema(name, gates.columns, f"table {name} is gone") for name in gone]
        known = {
            f"{name}.{column}" for made in (before, profile) for name, t in made.tables.items() for column in t.columns
        }
        lost = [name for name in gates.ignore if name not in known]
        checks += [_schema(name, "warn", f"gates.ignore names {name}, which is no column") for name in lost]
    return GateReport(profile.snapshot, None if before is None else before.snapshot, tuple(checks))


def _contract(name: str, table: TableProfile, spec: TableSpec, contract: Contract) -> Iterator[Check]:
    """What silver promises by itself; a violation is a defect of the platform or a snapshot of other making."""
    for column, rule in _rules(spec, contract.record):
        if column not in table.columns:
            if table.rows and column in spec.columns and column not in table.schema:
                yield _schema(f"{name}.{column}", "block", f"{name}.{column} is declared and not there")
            continue
        found, subject, wrong = table.columns[column], f"{name}.{column}", []
        value = found.facets.get("value")
        if found.nulls and not rule.nullable:
            wrong.append(f"{found.nulls} nulls in a column that takes none")
        if value is not None and value.minimum is not None and rule.min is not None and value.minimum < rule.min:
            wrong.append(f"minimum {value.minimum:g} below {rule.min:g}")
        if value is not None and value.maximum is not None and rule.max is not None and value.maximum > rule.max:
            wrong.append(f"maximum {value.maximum:g} above {rule.max:g}")
        unknown = sorted(set(found.mix.counts or ()) - set(rule.categories)) if rule.categories else []
        if unknown:
            wrong.append(f"value {unknown[0]!r}, which is none of its categories")
        for side in ("width", "height"):
            wanted, sizes = getattr(rule, side, None), found.facets.get(side)
            if wanted is not None and sizes is not None and (sizes.minimum, sizes.maximum) != (wanted, wanted):
                wrong.append(f"{side} {sizes.minimum:g} to {sizes.maximum:g} where {wanted} is declared")
        numbers = {"nulls": float(found.nulls), "rows": float(found.rows)}
        sentence = f"{subject} breaks the contract: {'; '.join(wrong)}." if wrong else f"{subject} keeps the contract."
        yield Check("contract", subject, "block" if wrong else "pass", numbers, {}, sentence)


def _rules(spec: TableSpec, record: Mapping[str, RecordField]) -> Iterator[tuple[str, Column | RecordField]]:
    for name, column in spec.columns.items():
        inside = {"record": f"{name}.", "messages": f"{name}.table."}.get(column.type)
        if inside is not None:
            for field, rule in record.items():
                absent = column.type == "record" and column.nullable  # the whole record may be null
                yield f"{inside}{field}", rule.model_copy(update={"nullable": rule.nullable or absent})
        if column.type != "record" and name != "split":
            yield name, column


def _table(name: str, before: TableProfile, after: TableProfile, spec: TableSpec, gates: Gates) -> Iterator[Check]:
    """Schema, rows, nulls, range and drift of a table."""
    for column in {**before.schema, **after.schema}:
        old, new = before.schema.get(column), after.schema.get(column)
        if old != new:
            what = "was added" if old is None else "is gone" if new is None else f"was {old} and is {new}"
            yield _schema(f"{name}.{column}", "warn" if old is None else gates.columns, f"{name}.{column} {what}")
    if before.rows:
        lost = max(0.0, 1 - after.rows / before.rows)
        text = f"{name} had {before.rows} rows and has {after.rows}"
        yield _measured("rows", name, lost, gates.rows, text, _may_block(gates, before.rows))
    names = {spec.key, "concept", *(c for c in spec.unique if spec.columns[c].type == "string")}
    for column, now in after.columns.items():
        subject, then = f"{name}.{column}", before.columns.get(column)
        if then is None or then.type != now.type or subject in gates.ignore or is_near_mark(spec, column):
            continue
        grown = max(0.0, now.null_share - then.null_share)
        text = f"{subject} had {units.percent(then.null_share)} nulls and has {units.percent(now.null_share)}"
        yield _measured("nulls", subject, grown, gates.nulls, text, _may_block(gates, min(then.rows, now.rows)))
        if column not in names:
            yield from _drift(subject, then, now, gates)


def _drift(subject: str, then: ColumnProfile, now: ColumnProfile, gates: Gates) -> Iterator[Check]:
    """Categories where both have few values, else each distribution, with the share beyond the earlier range."""
    categories = then.mix.counts and now.mix.counts
    if then.mix.counts and now.mix.counts:
        yield _mixed(subject, then.mix.counts, now.mix.counts, gates)
    elif then.mix.counts and now.mix.counts is None and then.rows >= FEW * len(then.mix.counts):
        sentence = f"{subject} had {len(then.mix.counts)} distinct values and has about {now.distinct_values}."
        yield Check("mix", subject, "warn", {"before": float(len(then.mix.counts))}, {}, sentence)
    for kind, earlier, later in _found(then, now):
        yield _mixed(f"{subject} ({kind})", earlier, later, gates)
    for facet in sorted(then.facets.keys() & now.facets.keys()):
        was, is_ = then.facets[facet], now.facets[facet]
        if not was.count or not is_.count or (categories and facet in ("value", "characters")):
            continue
        name = subject if facet == "value" else f"{subject} ({facet})"
        beyond, may_block = outside(was, is_), _may_block(gates, min(was.count, is_.count))
        text = f"{name} lay in {was.minimum:g} to {was.maximum:g}, and {units.percent(beyond)} of its values are beyond"
        yield _measured("range", name, beyond, gates.outside, text, may_block)
        test = ks_of_numbers(was, is_)
        found = {"psi": psi_of_numbers(was, is_), "ks": test.size, "p": test.p}
        yield _drifted(name, found, gates, may_block, f"its mean was {_mean(was)} and is {_mean(is_)}")


def _mixed(subject: str, was: Mapping[str, int], is_: Mapping[str, int], gates: Gates) -> Check:
    may_block = _may_block(gates, min(sum(was.values()), sum(is_.values())))
    test = chi2_of_mixes(was, is_)
    found = {"psi": psi_of_mixes(was, is_), "chi2": test.size, "statistic": test.statistic, "p": test.p}
    return _drifted(subject, found, gates, may_block, _largest_change(was, is_))


def _found(then: ColumnProfile, now: ColumnProfile) -> Iterator[tuple[str, Mapping[str, int], Mapping[str, int]]]:
    """Counts before and now of media by format, or of texts with and without each pattern."""
    columns = then, now
    if any("bytes" in column.facets for column in columns):
        was, is_ = (column.found for column in columns)
        if was and is_:
            yield "format", was, is_
        return
    values = [column.rows - column.nulls for column in columns]
    for name in {**then.found, **now.found} if all(values) else ():
        counts = [column.found.get(name, 0) for column in columns]
        was, is_ = ({name: n, f"no {name}": total - n} for n, total in zip(counts, values, strict=True))
        yield name, was, is_


def _drifted(subject: str, numbers: Mapping[str, float], gates: Gates, may_block: bool, change: str) -> Check:
    held = {name: getattr(gates, name) for name in ("psi", "ks", "chi2") if name in numbers}
    levels = [_level(numbers[name], threshold) for name, threshold in held.items()]
    verdict: Verdict = max(levels, key=SEVERITY.__getitem__) if numbers["p"] < gates.alpha else "pass"
    names = {"psi": "PSI", "ks": "KS distance", "chi2": "Cramér's V"}
    sizes = ", ".join(f"{names[n]} {numbers[n]:.3f} ({_limits(threshold)})" for n, threshold in held.items())
    verb = "kept its distribution" if verdict == "pass" else "drifted"
    sentence = f"{subject} {verb}: {sizes}, p {numbers['p']:.1e}; {change}."
    limits = {f"{n}.{side}": getattr(t, side) for n, t in held.items() for side in ("warn", "block")}
    return Check("drift", subject, _capped(verdict, may_block), numbers, {**limits, "alpha": gates.alpha}, sentence)


def _repeats(repeats: Repeats, gates: Gates) -> Iterator[Check]:
    for subject, (count, repeated) in repeats.values.items():
        share = repeated / max(1, count)
        text = f"{repeated} of {count} values of {subject} ({units.percent(share)}) equal an earlier one"
        yield _measured("duplicates", subject, share, gates.duplicates, text, _may_block(gates, count))
    for table, (count, both) in repeats.concepts.items():
        text = f"{len(both)} of {count} concepts of {table} are in both splits"
        sentence = f"{text}{f', the first {both[0]!r}' if both else ''}."
        numbers = {"concepts": float(count), "both": float(len(both))}
        yield Check("leakage", table, "block" if both else "pass", numbers, {"both.block": 0.0}, sentence)
    share = len(repeats.leaked) / max(1, repeats.media)
    first = ", the first {} and {}".format(*repeats.leaked[0]) if repeats.leaked else ""
    text = f"{len(repeats.leaked)} of {repeats.media} media ({units.percent(share)}) are in both splits{first}"
    yield _measured("leakage", "media", share, gates.leakage, text, _may_block(gates, repeats.media))


def _near(near: Mapping[str, NearFound], gates: Gates) -> Iterator[Check]:
    for kind, found in near.items():
        share = found.near / max(1, found.compared)
        text = f"{found.near} of {found.compared} {kind}s ({units.percent(share)}) are near another one"
        text += f", {found.left_out} rows were left out for it" if found.left_out else ""
        yield _measured("near duplicates", kind, share, gates.near, text, _may_block(gates, found.compared))
        share = found.leaked / max(1, found.heldout)
        text = f"{found.leaked} of {found.heldout} held-out {kind}s ({units.percent(share)}) are near a training one"
        text += ", the first {1} and {0} (distance {2:g})".format(*found.leaks[0]) if found.leaks else ""
        yield _measured("near leakage", kind, share, gates.near_leakage, text, _may_block(gates, found.heldout))


def _measured(name: str, subject: str, share: float, threshold: Threshold, text: str, may_block: bool) -> Check:
    limits = {"share.warn": threshold.warn, "share.block": threshold.block}
    verdict = _capped(_level(share, threshold), may_block)
    return Check(name, subject, verdict, {"share": share}, limits, f"{text} ({_limits(threshold)}).")


def _schema(subject: str, verdict: Verdict, text: str) -> Check:
    return Check("schema", subject, verdict, {}, {}, f"{text}.")


def _level(value: float, threshold: Threshold) -> Verdict:
    if threshold.block is not None and value > threshold.block:
        return "block"
    return "warn" if threshold.warn is not None and value > threshold.warn else "pass"


def _may_block(gates: Gates, rows: int) -> bool:
    return rows >= gates.min_rows


def _capped(verdict: Verdict, may_block: bool) -> Verdict:
    return "warn" if verdict == "block" and not may_block else verdict


def _limits(threshold: Threshold) -> str:
    sides = [
        f"{side}s above {value:g}" for side in ("warn", "block") if (value := getattr(threshold, side)) is not None
    ]
    return ", ".join(sides) or "switched off"


def _mean(numbers: Numbers) -> str:
    return units.UNKNOWN if numbers.mean is None else f"{numbers.mean:.4g}"


def _largest_change(then: Mapping[str, int], now: Mapping[str, int]) -> str:
    totals = sum(then.values()), sum(now.values())
    shares = {key: (then.get(key, 0) / totals[0], now.get(key, 0) / totals[1]) for key in {**then, **now}}
    key = max(shares, key=lambda name: abs(shares[name][0] - shares[name][1]))
    return f"{key!r} was {units.percent(shares[key][0])} and is {units.percent(shares[key][1])}"
