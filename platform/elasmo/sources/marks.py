"""The columns that silver adds to those of a table: split and concept, near rows, languages, modality."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from elasmo.sources.silver_rules import LanguageRule, NearRules

if TYPE_CHECKING:
    from elasmo.sources.contract import TableSpec

Kind = Literal["image", "text"]
"""What is compared with its like."""
NEAR, DISTANCE, LANGUAGE, MODALITY = "_near", "_near_distance", "_language", "modality"


def near_columns(spec: TableSpec, rules: NearRules) -> dict[str, Kind]:
    """Columns of which near values are looked for, with their kind."""
    images = [] if rules.image.do == "off" else [n for n, column in spec.columns.items() if column.type == "image"]
    texts = [] if rules.text.do == "off" else texts_of(spec)
    return {**dict.fromkeys(images, "image"), **dict.fromkeys(texts, "text")}


def language_columns(spec: TableSpec, rule: LanguageRule) -> list[str]:
    """Columns whose language is told."""
    return texts_of(spec) if rule.tag else []


def texts_of(spec: TableSpec) -> list[str]:
    """Columns of running text: conversations, and strings that the contract calls `text`."""
    return [name for name, column in spec.columns.items() if column.type == "messages" or column.text]


def marked(spec: TableSpec, near: NearRules, languages: LanguageRule) -> dict[str, pa.DataType]:
    """Names and types of the marks of a table, in silver's order; `modality` unless the table has its own."""
    found: dict[str, pa.DataType] = {}
    for name in near_columns(spec, near):
        found |= {f"{name}{NEAR}": pa.string(), f"{name}{DISTANCE}": pa.float64()}
    found |= {f"{name}{LANGUAGE}": pa.string() for name in language_columns(spec, languages)}
    return found if MODALITY in spec.columns else {**found, MODALITY: pa.string()}


def is_near_mark(spec: TableSpec, column: str) -> bool:
    """Whether a column of silver says what its row is near to: names and distances, which have no distribution."""
    return any(column in (f"{name}{NEAR}", f"{name}{DISTANCE}") for name in spec.columns)
