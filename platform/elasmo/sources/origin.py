"""What the contract of a `tables` source says: where each table lands from, and how samples are made of its rows."""

from __future__ import annotations

import codecs
from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator, model_validator

from elasmo.data.draft import Role
from elasmo.sources.part import Part

FileFormat = Literal[
    "parquet", "csv", "jsonl", "arrow", "folder", "webdataset", "huggingface", "energon", "mds"
]  # fmt: skip
FORMATS = (*get_args(FileFormat), "sql")
TEXT_FORMATS = ("csv", "jsonl", "folder")


class FilesOrigin(Part):
    """Files that hold a table, in one of the formats that have a reader."""

    format: FileFormat
    path: str = Field(description="file, glob or folder beside the contract; an absolute path; or a URL of fsspec")
    rename: dict[str, str] = Field({}, description="the source's column -> the contract's")
    encoding: str = Field("utf-8", description="of the text of csv, jsonl and folder")
    delimiter: str = Field(",", min_length=1, max_length=1, description="between the fields of csv")

    @field_validator("encoding")
    @classmethod
    def _known(cls, encoding: str) -> str:
        try:
            return codecs.lookup(encoding).name
        except LookupError:
            raise ValueError("it must be an encoding that Python knows, such as utf-8, latin-1 or utf-16") from None

    @model_validator(mode="after")
    def _of_its_format(self) -> FilesOrigin:
        if self.encoding != "utf-8" and self.format not in TEXT_FORMATS:
            raise ValueError(f"encoding is for {', '.join(TEXT_FORMATS)}; format {self.format} has its own, remove it")
        if self.delimiter != "," and self.format != "csv":
            raise ValueError(f"delimiter is for csv; remove it from format {self.format}")
        return self


class SqlOrigin(Part):
    """A table or a query of a database, read in chunks in the order of a key column."""

    format: Literal["sql"]
    url: str = Field(description="sqlite:///file.db (beside the contract) or postgresql://user@host:port/database")
    table: str | None = Field(None, description="table, or schema.table")
    query: str | None = Field(None, description="one SELECT statement instead of a table")
    key: str = Field(description="column whose values are unique and never null; chunks follow its order")
    chunk_rows: int = Field(1024, ge=1, description="rows of a chunk, the unit that a killed ingestion keeps")
    rename: dict[str, str] = Field({}, description="the source's column -> the contract's")

    @model_validator(mode="after")
    def _one_of(self) -> SqlOrigin:
        if (self.table is None) == (self.query is None):
            raise ValueError("give either `table` or `query`")
        return self


Origin = Annotated[FilesOrigin | SqlOrigin, Field(discriminator="format")]


class SegmentSpec(Part):
    """One segment: a medium or record column of the row, a record made of columns, or a text with {column} in it."""

    image: str | None = None
    audio: str | None = None
    table: str | dict[str, str] | None = Field(None, description="a record column, or record field -> column")
    text: str | None = None

    @model_validator(mode="after")
    def _one(self) -> SegmentSpec:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError("a segment is one of image, audio, table (a column each) or text (a template)")
        return self


class TurnSpec(Part):
    """One message of a sample."""

    role: Role
    segments: tuple[SegmentSpec, ...] = Field(min_length=1)


class SampleSpec(Part):
    """A sample per row of a table; `key` is a template, the table's own key when left out."""

    table: str
    key: str | None = None
    turns: tuple[TurnSpec, ...] = Field(min_length=2)
