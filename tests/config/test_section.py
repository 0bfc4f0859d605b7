"""What holds for every key of every section: finite numbers, 64 bits, and no truth value for a number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

import elasmo.config
from elasmo.config import Config
from elasmo.config.section import Section

SECTIONS = sorted(
    (kind for kind in vars(elasmo.config).values() if isinstance(kind, type) and issubclass(kind, Section)),
    key=lambda kind: kind.__name__,
)
Field = tuple[type[BaseModel], str, bool]
"""Section, key, and whether the key holds a list."""


def leaves(annotation: Any) -> Iterator[Any]:
    if get_args(annotation) and get_origin(annotation) is not Literal:
        for part in get_args(annotation):
            yield from leaves(part)
    else:
        yield annotation


def fields(wanted: type) -> list[Field]:
    """The keys that take values of a type."""
    return [
        (section, name, get_origin(field.annotation) is tuple)
        for section in SECTIONS
        for name, field in section.model_fields.items()
        if wanted in [leaf for leaf in leaves(field.annotation) if isinstance(leaf, type)]
        and get_origin(field.annotation) is not dict
    ]


def accepting(wanted: type, value: object) -> list[Field]:
    return [field for field in fields(wanted) if not refused(*field, value)]


def refused(section: type[BaseModel], name: str, several: bool, value: object) -> bool:
    try:
        section.model_validate({name: [value, value] if several else value})
    except ValidationError as error:
        return any(item["loc"][:1] == (name,) for item in error.errors())
    return False


def test_every_section_is_looked_at() -> None:
    assert Config in SECTIONS and len(SECTIONS) > 15
    assert {(section.__name__, name) for section, name, _ in fields(float)} >= {
        ("TrainConfig", "betas"),
        ("TrainConfig", "lr"),
        ("VisionConfig", "std"),
        ("DecoderConfig", "rope_theta"),
        ("RopeScalingConfig", "attention_factor"),
        ("SourceConfig", "weight"),
    }
    assert len(fields(bool)) > 5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_number_is_nan_or_infinite(value: float) -> None:
    assert accepting(float, value) == []


@pytest.mark.parametrize("value", [True, False, 10**20, -(10**20)])
def test_whole_numbers_are_no_truth_values_and_fit_in_64_bits(value: int) -> None:
    assert accepting(int, value) == []


@pytest.mark.parametrize("value", [True, False])
def test_numbers_are_no_truth_values(value: bool) -> None:
    assert accepting(float, value) == []


@pytest.mark.parametrize("value", [0, 1, "yes", "true"])
def test_truth_values_are_no_numbers_and_no_words(value: object) -> None:
    assert accepting(bool, value) == []
