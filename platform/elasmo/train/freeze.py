"""Which parts of a model are trained: patterns over parameter names, the last that matches decides."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn


class FreezeError(ValueError):
    """A `train.freeze` that names no part of the model, or leaves nothing to train."""


def freeze(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Takes the gradients of frozen parameters away.

    A pattern names a module or a parameter, with `*` for anything: `vision`, `decoder.layers.0`, `*.projector`. It
    freezes all that lies in it; `!` in front trains it again. Of several that match, the last counts.

    Returns:
        Names of the frozen parameters.

    Raises:
        FreezeError: a pattern matches nothing, or everything is frozen.
    """
    frozen: dict[str, bool] = {}
    matched: set[str] = set()
    for name, _ in model.named_parameters():
        parts = name.split(".")
        inside = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        frozen[name] = False
        for pattern in patterns:
            if any(fnmatchcase(part, pattern.removeprefix("!")) for part in inside):
                frozen[name] = not pattern.startswith("!")
                matched.add(pattern)
    for pattern in patterns:
        if pattern not in matched:
            raise FreezeError(
                f"train.freeze names {pattern!r}, which matches no part of the model; {_hint(model, pattern)}"
            )
    if all(frozen.values()):
        raise FreezeError("train.freeze freezes every parameter; except some with '!', such as '!*.projector'.")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not frozen[name])
    return [name for name, is_frozen in frozen.items() if is_frozen]


def _hint(model: nn.Module, pattern: str) -> str:
    modules = [name for name, _ in model.named_modules() if name]
    close = difflib.get_close_matches(pattern.removeprefix("!"), modules, n=1)
    top = sorted({name.split(".")[0] for name in modules})
    return f"did you mean {close[0]!r}?" if close else f"its parts are {', '.join(top)}."
