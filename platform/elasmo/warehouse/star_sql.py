"""A star as SQL for SQLite and PostgreSQL alike: its tables, and each source table as a view that joins it again."""

from __future__ import annotations

from elasmo.warehouse.relation import Kind
from elasmo.warehouse.star import Star, StarTable, identifier

TYPES: dict[Kind, str] = {
    "integer": "BIGINT", "number": "DOUBLE PRECISION", "decimal": "NUMERIC", "boolean": "BOOLEAN", "date": "DATE",
    "timestamp": "TIMESTAMP", "text": "TEXT", "bytes": "BYTEA",
}  # fmt: skip


def ddl(star: Star) -> str:
    """CREATE TABLE statements in an order in which they run, then CREATE VIEW statements."""
    parts = [f"-- A {star.shape}. Proposed from the data: keys, references and dependencies hold in every row."]
    parts += [_table(table) for table in star.tables]
    parts += [_view(star, table) for table in star.tables if table.split is None]
    return "\n\n".join(parts) + "\n"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _table(table: StarTable) -> str:
    lines = [f"{quoted(c.name)} {TYPES[c.kind]}{'' if c.nullable else ' NOT NULL'}" for c in table.columns]
    if table.key:
        lines.append(f"PRIMARY KEY ({_listed(table.key)})")
    lines += [f"UNIQUE ({_listed(columns)})" for columns in table.unique]
    for reference in table.references:
        itself = " DEFERRABLE INITIALLY DEFERRED" if reference.to == table.name else ""
        lines.append(
            f"FOREIGN KEY ({_listed(reference.columns)}) REFERENCES {quoted(reference.to)} "
            f"({_listed(reference.to_columns)}){itself}"
        )
    body = ",\n".join(f"  {line}" for line in lines)
    measures = [f"{c.name} ({'sum' if c.summed else 'average, not sum'})" for c in table.columns if c.role == "measure"]
    told = f"-- {table.part}: {table.grain}" + (f"; measures {', '.join(measures)}" if measures else "")
    return f"{told}\nCREATE TABLE {quoted(table.name)} (\n{body}\n);"


def _view(star: Star, table: StarTable) -> str:
    """The source table of a table: its own columns, and those that moved, by as many joins as they are away."""
    inner = {t.name: t for t in star.of_source(table.source) if t.split is not None}
    at = {column.name: (table.name, column.source) for column in table.columns}
    joins, waiting = [], [table]
    while waiting:
        holder = waiting.pop(0)
        for reference in (r for r in holder.references if r.to in inner):
            other = inner.pop(reference.to)
            (left,), (right,) = reference.columns, reference.to_columns
            on = f"{quoted(other.name)}.{quoted(right)} = {quoted(holder.name)}.{quoted(left)}"
            joins.append(f"  LEFT JOIN {quoted(other.name)} ON {on}")
            at = {**{column.name: (other.name, column.source) for column in other.columns}, **at}
            waiting.append(other)
    order = star.sources[table.source]
    held = sorted(at.items(), key=lambda found: order.index(found[1][1]))
    columns = ",\n".join(f"  {quoted(holder)}.{quoted(name)} AS {quoted(name)}" for name, (holder, _) in held)
    head = f"CREATE VIEW {quoted(identifier(table.source))} AS\nSELECT\n{columns}\nFROM {quoted(table.name)}"
    return "\n".join([head, *joins]) + ";"


def _listed(columns: tuple[str, ...]) -> str:
    return ", ".join(map(quoted, columns))
