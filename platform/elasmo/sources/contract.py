"""The contract of a dataset folder: its content and licence, what a row must satisfy, how rows are split."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from elasmo.config import LimitsConfig
from elasmo.sources.marks import marked
from elasmo.sources.origin import FORMATS, FilesOrigin, Origin, SampleSpec, SegmentSpec, SqlOrigin, TurnSpec
from elasmo.sources.part import Part
from elasmo.sources.silver_rules import LanguageRule, NearImages, NearRules, NearTexts, Timeouts

CONTRACT_FILE = "contract.yaml"
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Modality = Annotated[str, Field(pattern=r"^(text|(image|audio|table)(\+(image|audio|table))*)$")]


class ContractError(ValueError):
    """A contract that cannot be used, in sentences that name the file, the key, the value and the mend.

    `places` holds the path of keys that each line is about, where it is about keys.
    """

    def __init__(self, message: str, places: Sequence[tuple[int | str, ...]] = ()) -> None:
        super().__init__(message)
        self.places = tuple(places)


class Licence(Part):
    """Where a part of the data comes from and what may be done with it."""

    part: str
    licence: str
    kind: Literal["real", "measured", "synthetic"]
    origin: str
    note: str = ""


class RecordField(Part):
    """One field of the structured record: a number with a range, one of a few categories, any text, or a time."""

    type: Literal["number", "category", "text", "time"]
    min: float | None = None
    max: float | None = None
    integer: bool = False
    categories: tuple[str, ...] = ()
    nullable: bool = False
    description: str = ""

    @model_validator(mode="after")
    def _complete(self) -> RecordField:
        if self.type == "category" and not self.categories:
            raise ValueError("a category needs `categories`, the list of its values")
        if self.type == "number" and self.categories:
            raise ValueError("a number takes min and max, not categories")
        if self.type in ("text", "time") and self.model_fields_set & {"min", "max", "integer", "categories"}:
            raise ValueError(f"a {self.type} takes nullable and description, not min, max, integer or categories")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}")
        return self


class Column(Part):
    """One typed column of a table and the checks every value must pass."""

    type: Literal["string", "integer", "number", "category", "image", "audio", "record", "messages"]
    min: float | None = None
    max: float | None = None
    categories: tuple[str, ...] = ()
    nullable: bool = False
    width: int | None = Field(None, description="exact width of an image in pixels")
    height: int | None = Field(None, description="exact height of an image in pixels")
    text: bool = Field(False, description="a string of running text: tagged with its language, held against others")

    @model_validator(mode="after")
    def _complete(self) -> Column:
        if self.type == "category" and not self.categories:
            raise ValueError("a category needs `categories`, the list of its values")
        if self.text and self.type != "string":
            raise ValueError(f"`text` is for columns of type string, not {self.type}; leave it out")
        return self


class SplitRule(Part):
    """How rows of a table become `train` or `heldout`.

    Rows that agree in the `concept` column (a writer, a voice, a patient, a group of near-duplicates) are never
    separated. A row is held out if its `column` says so, else if its concept is listed in `heldout`, else by a hash of
    the concept for `heldout_fraction` of the concepts. `follows` names a column that holds the key of a row of table
    `of`, whose split and concept it takes.
    """

    concept: str | None = None
    column: str | None = None
    heldout: tuple[str, ...] = ()
    heldout_fraction: Fraction = 0.0
    follows: str | None = None
    of: str | None = None

    @model_validator(mode="after")
    def _one_way(self) -> SplitRule:
        if (self.follows is None) != (self.of is None):
            raise ValueError("`follows` (a column) and `of` (a table) come together")
        if (self.concept is None) == (self.follows is None):
            raise ValueError("give either `concept`, the column whose values stay together, or `follows` and `of`")
        return self


class TableSpec(Part):
    """The columns of a table; `key` names rows for good, `unique` lists columns in which no two rows may agree."""

    columns: dict[str, Column]
    key: str = "key"
    unique: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _columns_exist(self) -> TableSpec:
        for name in (self.key, *self.unique):
            if name not in self.columns:
                raise ValueError(f"column {name!r} is named but not declared; columns are {', '.join(self.columns)}")
        if self.columns[self.key].type != "string":
            raise ValueError(f"key column {self.key!r} must have type string")
        return self


class Media(Part):
    """Caps of a single medium, checked before it is decoded, and the sample rate of all audio."""

    image_bytes: int | None = None
    image_pixels: int | None = None
    audio_bytes: int | None = None
    audio_s: float | None = None
    sample_rate: int | None = Field(None, description="Hz; audio at another rate is quarantined")

    def limits(self, platform: LimitsConfig) -> LimitsConfig:
        """The stricter of this contract's caps and the platform's, key by key."""
        ours = self.model_dump(exclude={"sample_rate"}, exclude_none=True)
        return LimitsConfig(**{**platform.model_dump(), **{k: min(v, getattr(platform, k)) for k, v in ours.items()}})


class Threshold(Part):
    """Above `warn` a person is told, above `block` no gold is made; null switches either off."""

    warn: float | None = None
    block: float | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Threshold:
        if self.warn is not None and self.block is not None and self.warn > self.block:
            raise ValueError(f"warn={self.warn} is above block={self.block}")
        return self


class Gates(Part):
    """How far a snapshot may lie from its predecessor and from the contract before it becomes gold (`gate.py`)."""

    columns: Literal["pass", "warn", "block"] = Field("block", description="columns that were removed or retyped")
    rows: Threshold = Field(Threshold(warn=0.1, block=0.5), description="share of a table's rows that is gone")
    refused: Threshold = Field(Threshold(warn=0.05, block=0.5), description="share of the bronze rows in quarantine")
    nulls: Threshold = Field(Threshold(warn=0.02, block=0.2), description="growth of a column's share of nulls")
    outside: Threshold = Field(Threshold(warn=0.02, block=0.2), description="share of values beyond the earlier range")
    psi: Threshold = Field(Threshold(warn=0.1, block=0.25), description="population stability index")
    ks: Threshold = Field(Threshold(warn=0.1, block=0.25), description="Kolmogorov-Smirnov distance")
    chi2: Threshold = Field(Threshold(warn=0.1, block=0.25), description="Cramér's V of the chi-squared test")
    alpha: float = Field(0.001, gt=0, lt=1, description="p-value from which a drift may be chance and passes")
    duplicates: Threshold = Field(Threshold(warn=0.05, block=0.5), description="share of media or messages seen before")
    leakage: Threshold = Field(Threshold(warn=0.0, block=0.1), description="share of media that are in both splits")
    near: Threshold = Field(Threshold(warn=0.2, block=None), description="share of images or texts near another one")
    near_leakage: Threshold = Field(
        Threshold(warn=0.0, block=0.1), description="share of held-out images or texts that are near a training one"
    )
    min_rows: int = Field(50, ge=0, description="fewer values than this, now or before, warn and do not block")
    ignore: tuple[str, ...] = Field((), description="`table.column`s that may drift, such as a running number")

    @model_validator(mode="before")
    @classmethod
    def _keep_defaults(cls, tree: Any) -> Any:
        """A threshold that names `block` alone keeps the default of `warn`."""
        if not isinstance(tree, dict):
            return tree
        default = {name: field.default for name, field in cls.model_fields.items()}
        kept = {name: value.model_dump() for name, value in default.items() if isinstance(value, Threshold)}
        return {k: {**kept[k], **v} if k in kept and isinstance(v, dict) else v for k, v in tree.items()}


class Contract(Part):
    """The whole contract of a dataset folder."""

    name: Name
    title: str
    description: str = ""
    source: Literal["recipe", "files", "tables"]
    recipe: str = Field("recipe.py", description="Python module of a `recipe` source, beside the contract")
    rows: str = Field("rows.jsonl", description="JSONL file of a `files` source, beside the contract")
    licences: tuple[Licence, ...] = Field(min_length=1)
    modalities: tuple[Modality, ...] = Field(min_length=1)
    tables: dict[str, TableSpec] = Field({})
    splits: dict[str, SplitRule] = Field({})
    origins: dict[str, Origin] = Field({}, alias="from", description="`tables` source: where each table lands from")
    samples: tuple[SampleSpec, ...] = Field((), description="`tables` source: conversations made of rows")
    heldout_fraction: Fraction = Field(
        0.1, description="share of concepts held out by hash where `splits` says nothing"
    )
    record: dict[str, RecordField] = Field({})
    media: Media = Media()
    near: NearRules = NearRules()
    languages: LanguageRule = LanguageRule()
    timeouts: Timeouts = Timeouts()
    gates: Gates = Gates()

    @model_validator(mode="after")
    def _agrees(self) -> Contract:
        if self.source == "recipe" and not self.tables:
            raise ValueError("a recipe source needs `tables`, the tables its recipe lands")
        if self.source == "files" and (self.tables or self.splits):
            raise ValueError("a files source has built-in tables; remove `tables` and `splits` (use heldout_fraction)")
        if self.source == "tables" and not (self.tables and self.origins and self.samples):
            raise ValueError("a tables source needs `tables` (columns), `from` (where they land from) and `samples`")
        if self.source != "tables" and (self.origins or self.samples):
            raise ValueError(f"`from` and `samples` are for source: tables; remove them from source: {self.source}")
        for table, rule in self.splits.items():
            if table not in self.tables:
                raise ValueError(f"splits.{table} names a table that is not in `tables`")
            if rule.of is not None and rule.of not in self.tables:
                raise ValueError(f"splits.{table}.of is {rule.of!r}, which is not in `tables`")
            for column in (rule.concept, rule.column, rule.follows):
                if column is not None and column not in self.tables[table].columns:
                    raise ValueError(f"splits.{table} names column {column!r}, which tables.{table} does not declare")
        for table, spec in self.tables.items():
            clash = [name for name in marked(spec, self.near, self.languages) if name in spec.columns]
            if clash:
                raise ValueError(
                    f"tables.{table} declares {clash[0]!r}, a name silver adds by itself; rename the column"
                )
        uses_record = any(c.type == "record" for t in self.tables.values() for c in t.columns.values())
        if uses_record and not self.record:
            raise ValueError("a column of type record needs `record`, its fields")
        return self


def load_contract(folder: Path) -> Contract:
    """The validated contract of a dataset folder.

    Raises:
        ContractError: no folder, no contract.yaml, bad YAML, an unknown key or a value that is not allowed.
    """
    path = folder / CONTRACT_FILE
    if not folder.is_dir():
        raise ContractError(f"Dataset folder {folder} does not exist; give a folder that holds a {CONTRACT_FILE}.")
    if not path.is_file():
        raise ContractError(
            f"{folder} has no {CONTRACT_FILE}; write one that names the dataset, its licence and its tables "
            "(data/README.md shows how)."
        )
    try:
        tree = yaml.safe_load(path.read_text())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ContractError(f"{path}{line} is not valid YAML: {error.problem or error.context}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ContractError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ContractError(f"{path} holds a {type(tree).__name__}; it must hold keys such as `name:` and `licences:`.")
    try:
        contract = Contract.model_validate(tree)
    except ValidationError as error:
        # Pydantic counts only the items that are valid: a list whose one item is bad would be called too short as well.
        given = error.errors()
        inner = {item["loc"][:depth] for item in given for depth in range(len(item["loc"]))}
        items = [item for item in given if item["type"] != "too_short" or item["loc"] not in inner]
        places = [_place(item["loc"]) for item in items]
        told = [_sentence(path, {**item, "loc": place}) for item, place in zip(items, places, strict=True)]
        raise ContractError("\n".join(told), places) from None
    if contract.name != folder.resolve().name:
        raise ContractError(
            f"{path}: name is {contract.name!r} but the folder is {folder.resolve().name!r}; they must be equal, since "
            "the lake files a dataset under its name."
        )
    return contract


def _place(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Where a fault is in the YAML: pydantic puts an origin's format between the table and the key."""
    return (*loc[:2], *loc[3:]) if loc[:1] == ("from",) and len(loc) > 2 and loc[2] in FORMATS else loc


def _sentence(path: Path, error: dict[str, Any]) -> str:
    dotted = ".".join(str(part) for part in error["loc"]) or "the contract"
    if error["type"] == "missing":
        return f"{path}: {dotted} is missing; add it."
    if error["type"] == "extra_forbidden":
        key = str(error["loc"][-1])
        near = difflib.get_close_matches(key, sorted(_all_keys()), n=1, cutoff=0.5)
        return f"{path}: unknown key {dotted!r}" + (f"; did you mean {near[0]!r}?" if near else "; remove it.")
    if error["type"] in ("union_tag_not_found", "union_tag_invalid"):  # of an origin, by its format
        given = error.get("ctx", {}).get("tag")
        fault = "format is missing" if given is None else f"format is {given!r}"
        return f"{path}: {dotted}.{fault}; give one of {', '.join(FORMATS)}."
    message = re.sub(r"^Value error, ", "", error["msg"])
    if error["type"] == "value_error":
        return f"{path}: {dotted}: {message}."
    return f"{path}: {dotted} is {error.get('input')!r}: {message[0].lower()}{message[1:]}."


def _all_keys() -> set[str]:
    parts = (Contract, TableSpec, Column, SplitRule, RecordField, Licence, Media, Gates, Threshold)
    rules = (NearRules, NearImages, NearTexts, LanguageRule, Timeouts)
    origins = (FilesOrigin, SqlOrigin, SampleSpec, TurnSpec, SegmentSpec)
    return {field.alias or name for part in (*parts, *rules, *origins) for name, field in part.model_fields.items()}
