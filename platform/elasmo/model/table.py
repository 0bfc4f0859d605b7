"""The table tower: one embedding a cell from its field, its typed value, and whether it is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elasmo.config import TableConfig
from elasmo.model.cell import DAY_S
from elasmo.model.processor import TableField

PERIODS = (1.0, 7.0, 30.436875, 365.2425)
"""Days of a day, a week, and the mean month and year of the Gregorian calendar."""
KINDS = ("number", "category", "text", "time")


class TableTower(nn.Module):
    """Typed cell embeddings, each the sum of its field's and its value's.

    Numbers go in as they are and as periodic features (Gorishniy et al. 2022); categories have embeddings; a text is
    the mean of its n-grams' embeddings; a time goes in standardised, and as phases of the day, week, month and year.
    """

    def __init__(self, config: TableConfig, fields: Sequence[TableField], out: int) -> None:
        super().__init__()
        self.config = config
        self.fields = tuple(fields)
        widest = max((len(field.categories) for field in fields), default=0)
        # Row 0 is "not a category", the last "missing"; categories of all fields share rows, told apart by the field.
        self.category = nn.Embedding(widest + 2, config.hidden)
        self.field = nn.Embedding(max(1, len(fields)), config.hidden)
        self.number = nn.Linear(2 * config.frequencies + 1, config.hidden)
        kinds = {field.kind for field in fields}
        self.gram = nn.Embedding(config.text_buckets, config.hidden) if "text" in kinds else None
        self.time = nn.Linear(2 * len(PERIODS) + 1, config.hidden) if "time" in kinds else None
        self.mix = nn.Linear(config.hidden, config.hidden)
        self.projector = nn.Linear(config.hidden, out)

    def forward(self, fields: Tensor, values: Tensor, categories: Tensor, details: Tensor, detail_of: Tensor) -> Tensor:
        """Embeddings [cells, out] of cells: field, value and category [cells], details [details]; see `Batch`."""
        dtype = self.number.weight.dtype
        kinds = torch.tensor([KINDS.index(field.kind) for field in self.fields], device=fields.device)[fields]

        def present(kind: str) -> Tensor:
            """[cells, 1], one where a value of this kind is there."""
            return ((kinds == KINDS.index(kind)) & (categories >= 0)).to(dtype)[:, None]

        rows = categories % self.category.num_embeddings  # -1, missing, becomes the last row
        x = self.field(fields) + self.category(rows)
        x = x + self.number(self._number_features(values).to(dtype)) * present("number")
        is_text = kinds[detail_of] == KINDS.index("text")
        if self.gram is not None:
            cells = detail_of[is_text]
            count = torch.bincount(cells, minlength=len(fields)).clamp(min=1).to(dtype)
            grams = torch.zeros_like(x).index_add(0, cells, self.gram(details[is_text]).to(x.dtype))
            x = x + grams / count[:, None]
        if self.time is not None:
            second = torch.zeros_like(values).index_add(0, detail_of[~is_text], details[~is_text].to(values.dtype))
            x = x + self.time(self._time_features(fields, values, second).to(dtype)) * present("time")
        out: Tensor = self.projector(F.gelu(self.mix(x)))
        return out

    def _number_features(self, values: Tensor) -> Tensor:
        """[cells, 1 + 2 * frequencies]."""
        rates = math.pi * 2.0 ** (torch.arange(self.config.frequencies, device=values.device) - 2.0)
        angles = values[:, None] * rates
        return torch.cat([values[:, None], angles.sin(), angles.cos()], dim=1)

    def _time_features(self, fields: Tensor, days: Tensor, second: Tensor) -> Tensor:
        """[cells, 1 + 2 * periods] of whole days and seconds [cells]; apart, float32 is exact to the second."""
        mean, std = (
            torch.tensor(column, device=days.device)[fields]
            for column in zip(*((field.mean, field.std or 1.0) for field in self.fields), strict=True)
        )
        part = second / DAY_S
        linear = (days - mean + part) / std
        periods = torch.tensor(PERIODS, device=days.device)
        angles = 2 * math.pi * (days[:, None] % periods + part[:, None]) / periods
        return torch.cat([linear[:, None], angles.sin(), angles.cos()], dim=1)
