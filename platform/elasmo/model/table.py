"""The table tower: one embedding a cell from its field, its number or its category, and whether it is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from elasmo.config import TableConfig
from elasmo.model.processor import TableField


class TableTower(nn.Module):
    """Typed cell embeddings. Numbers go in as they are and as periodic features (Gorishniy et al. 2022)."""

    def __init__(self, config: TableConfig, fields: Sequence[TableField], out: int) -> None:
        super().__init__()
        self.config = config
        widest = max((len(field.categories) for field in fields), default=0)
        # Row 0 is "a number", the last row "missing"; categories of all fields share rows, told apart by the field.
        self.category = nn.Embedding(widest + 2, config.hidden)
        self.field = nn.Embedding(max(1, len(fields)), config.hidden)
        self.number = nn.Linear(2 * config.frequencies + 1, config.hidden)
        self.mix = nn.Linear(config.hidden, config.hidden)
        self.projector = nn.Linear(config.hidden, out)

    def forward(self, fields: Tensor, values: Tensor, categories: Tensor) -> Tensor:
        """Embeddings [cells, out] of cells given as field number, standardised value and category number, [cells]."""
        dtype = self.number.weight.dtype
        rates = math.pi * 2.0 ** (torch.arange(self.config.frequencies, device=values.device) - 2.0)
        angles = values[:, None] * rates
        features = torch.cat([values[:, None], angles.sin(), angles.cos()], dim=1).to(dtype)
        is_number = (categories == 0).to(dtype)[:, None]
        rows = categories % self.category.num_embeddings  # -1, missing, becomes the last row
        x = self.field(fields) + self.category(rows) + self.number(features) * is_number
        out: Tensor = self.projector(torch.nn.functional.gelu(self.mix(x)))
        return out
