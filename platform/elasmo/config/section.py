"""What all sections of the configuration share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
Seconds = Annotated[float, Field(gt=0.0)]


class Section(BaseModel):
    """A frozen part of the tree that accepts the keys it names and no others.

    Every number in it is finite and, if whole, fits in 64 bits; `true` is no number, and a number is no `true`.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), validate_default=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: object, info: ValidationInfo) -> object:
        types = _scalars(cls, str(info.field_name))
        if any(issubclass(kind, Section) for kind in types):
            return value  # its own keys are looked at there
        for item in _items(value):
            if isinstance(item, bool) and bool not in types and types & {int, float}:
                raise PydanticCustomError("boolean", "Input should be a number, not true or false")
            if types <= {bool, type(None)} and bool in types and not isinstance(item, bool):
                raise PydanticCustomError("no_boolean", "Input should be true or false")
            if isinstance(item, int) and not -(1 << 63) <= item < 1 << 63:
                raise PydanticCustomError("beyond_64_bits", "Input should fit in a signed integer of 64 bits")
        return value

    def unread(self, names: Iterable[str]) -> Iterator[str]:
        """Those of the keys, as `key=value`, that hold another value than their default: to refuse what is not read."""
        for name in sorted(names):
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                yield f"{name}={value}"


def _items(value: object) -> Iterable[object]:
    """The scalars of a field's raw value: of a list or of a mapping's values, or itself."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else (value,)


@cache
def _scalars(section: type[BaseModel], field: str) -> set[type]:
    return set(_types(section.model_fields[field].annotation))


def _types(annotation: Any) -> Iterator[type]:
    if get_origin(annotation) is Literal:
        yield from map(type, get_args(annotation))
    elif get_args(annotation):
        for part in get_args(annotation):
            yield from _types(part)
    elif isinstance(annotation, type):
        yield annotation
