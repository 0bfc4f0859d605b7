"""Reads a configuration: defaults, then YAML, then `ELASMO__SECTION__KEY` variables, then `section.key=value`."""

from __future__ import annotations

import difflib
import json
import os
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from elasmo.config.tree import Config

ENV_PREFIX = "ELASMO__"
NOT_SET = {
    "train.layout.dp": "data parallel is what tp x pp x sp leave of the number of workers; it follows from "
    "train.workers.min and train.workers.max",
}
"""Keys that one may look for, and why there are none."""


class ConfigError(ValueError):
    """A configuration that cannot be used, in sentences that name the key, the value and the mend."""


def load(
    path: str | Path | None = None,
    overrides: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
) -> Config:
    """The validated tree.

    Args:
        path: YAML file; None starts from the defaults.
        overrides: `section.key=value` strings, values parsed as YAML; the last one wins. `model.from=FOLDER` takes the
            model section from a published model.
        env: environment read for `ELASMO__SECTION__KEY`; this process's when None.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, wrong type or value out of range.
    """
    tree = _read_yaml(Path(path)) if path is not None else {}
    for key, value in sorted((os.environ if env is None else env).items()):
        if key.startswith(ENV_PREFIX):
            dotted = key[len(ENV_PREFIX) :].lower().replace("__", ".")
            _set(tree, dotted, _parse_value(dotted, value), source=key)
    for override in overrides:
        dotted, separator, value = override.partition("=")
        if not separator or not all(part.strip() for part in dotted.split(".")):
            raise ConfigError(f"Override {override!r} is not of the form section.key=value, such as train.steps=200.")
        _set(tree, dotted.strip(), _parse_value(dotted, value), source=override)
    _take_model(tree)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(dict.fromkeys(map(_sentence, _closest(error.errors()))))) from None


def dump(config: Config) -> str:
    """The whole tree as YAML, every default spelled out; `load` reads it back to an equal tree."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(
            f"Config file {path} does not exist; give the path of a YAML file such as pipelines/digits.yaml."
        )
    try:
        tree = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"Config file {path} is not valid YAML: {_fault(error)}.") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"Config file {path} holds {_short(tree)} ({type(tree).__name__}) at its top; it must hold "
            "sections, such as `train: {steps: 200}`."
        )
    return tree


def _take_model(tree: dict[str, Any]) -> None:
    """Replaces `model.from` by the settings of the published model that it names; what stands beside it wins."""
    section = tree.get("model")
    if not isinstance(section, dict) or "from" not in section:
        return
    source = section.pop("from")
    path = Path(str(source)) / "manifest.json"
    try:
        taken = dict(json.loads(path.read_text())["model"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"model.from is {source!r}, which holds no published model; name a folder of `elasmo import-hf` or "
            "`elasmo publish`."
        ) from None
    tree["model"] = _merged(taken, section)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _parse_value(key: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"Value {_short(text)} of {key} is not valid YAML: {_fault(error)}.") from None


def _fault(error: Exception) -> str:
    """What YAML, or a value such as a date in it, was refused for, in one line and with its place."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem} in line {mark.line + 1}, column {mark.column + 1}"
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return " ".join(str(error).split()).removesuffix(".")


def _set(tree: dict[str, Any], dotted: str, value: Any, source: str) -> None:
    *parents, leaf = dotted.split(".")
    node = tree
    for depth, parent in enumerate(parents):
        child = node.setdefault(parent, {})
        if child is None:
            child = node[parent] = {}
        if not isinstance(child, dict):
            above = ".".join(parents[: depth + 1])
            raise ConfigError(
                f"Override {source!r} goes below {above}, which holds the value {child!r}, not a section."
            )
        node = child
    node[leaf] = value


def _closest(errors: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The errors without those of types that a value does not have, where its key takes one of several types."""
    listed = [(error, tuple(takewhile(_is_key, error["loc"]))) for error in errors]
    several = [(error, path) for error, path in listed if path != error["loc"]]
    fitting = {path for error, path in several if not error["type"].endswith("_type")}
    misfits = [error for error, path in several if error["type"].endswith("_type") and path in fitting]
    return [error for error, _ in listed if error not in misfits]


def _is_key(part: str | int) -> bool:
    """Whether a part of a location is a key or an index, not one of the types that pydantic names in between."""
    return isinstance(part, int) or not re.match(r"constrained-|\w+\[", part)


def _sentence(error: Mapping[str, Any]) -> str:
    location = tuple(part for part in error["loc"] if isinstance(part, str))
    value, kind = error.get("input"), error["type"]
    absent_item = kind == "missing" and isinstance(error["loc"][-1], int)
    dotted = _dotted(error["loc"][:-1] if absent_item else error["loc"]) or "the configuration"
    if kind == "extra_forbidden":
        return _unknown_key(location)
    message = error["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return f"{dotted}: {message}."
    if kind == "missing" and not absent_item:
        *parents, key = error["loc"]
        return f"{_dotted(parents)} is {_short(value)}, which lacks the key {key}; set {dotted}."
    return f"{dotted} is {_short(value)} ({type(value).__name__}): {_wanted(kind, location, value, message)}."


def _wanted(kind: str, location: tuple[str, ...], value: object, message: str) -> str:
    if kind == "tuple_type":
        example = f"[{value}]" if isinstance(value, str | int | float) and value not in ("", True, False) else "[]"
        return f"it takes a list, such as {example}"
    if kind == "dict_type":
        return "it takes a mapping, such as {key: value}"
    if kind == "invalid_key":
        return "a key is a name, not a number"
    if kind == "missing":
        return "the list is too short"
    if kind in ("too_short", "too_long"):
        found = re.search(r"at (?:least|most) \d+ items?", message)
        return f"it takes a list of {found.group() if found else 'another length'}"
    section = _section(location) if kind in ("model_type", "model_attributes_type") else None
    if section is not None:
        return f"it is a section, with the keys {', '.join(section.model_fields)}"
    if kind in ("int_parsing", "float_parsing"):
        return "input should be a number" if kind == "float_parsing" else "input should be a whole number"
    return f"{message[0].lower()}{message[1:]}"


def _dotted(location: Iterable[str | int]) -> str:
    parts = filter(_is_key, location)
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _short(value: object) -> str:
    return textwrap.shorten(repr(value), 100, placeholder=" ...")


def _unknown_key(location: tuple[str, ...]) -> str:
    *parents, key = location
    section = _section(parents)
    names = list(section.model_fields) if section is not None else []
    dotted = ".".join(location)
    if dotted in NOT_SET:
        return f"Unknown config key {dotted!r}; {NOT_SET[dotted]}."
    # Half of a short key is too little to guess by: one letter of tp is no sign that it was meant.
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5 if len(key) > 3 else 0.75)
    if near:
        return f"Unknown config key {dotted!r}; did you mean {'.'.join([*parents, near[0]])!r}?"
    elsewhere = [name for name in _all_keys(Config) if name.rsplit(".", 1)[-1] == key]
    if elsewhere:
        return f"Unknown config key {dotted!r}; did you mean {elsewhere[0]!r}?"
    return f"Unknown config key {dotted!r}; {'.'.join(parents) or 'the top level'} takes {', '.join(names)}."


def _section(parents: Iterable[str]) -> type[BaseModel] | None:
    section: type[BaseModel] | None = Config
    for parent in parents:
        field = section.model_fields.get(parent) if section is not None else None
        section = _section_of(field.annotation) if field is not None else None
    return section


def _section_of(annotation: Any) -> type[BaseModel] | None:
    several = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is tuple
    options = typing.get_args(annotation) if several else (annotation,)
    for option in options:
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def _all_keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, field in section.model_fields.items():
        keys.append(prefix + name)
        below = _section_of(field.annotation)
        if below is not None:
            keys += _all_keys(below, f"{prefix}{name}.")
    return keys
