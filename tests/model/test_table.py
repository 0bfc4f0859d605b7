"""The table tower against its formula, and that values of different types are told apart."""

from __future__ import annotations

import math

import torch

from elasmo.config import TableConfig
from elasmo.model.processor import TableField
from elasmo.model.table import TableTower

FIELDS = (
    TableField("age", "number"),
    TableField("city", "category", ("Bern", "Oslo")),
    TableField("kind", "category", ("a", "b", "c")),
)
CONFIG = TableConfig(hidden=6, frequencies=3)


def tower() -> TableTower:
    built = TableTower(CONFIG, FIELDS, 4)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return built


@torch.no_grad()
def test_equals_the_formula_written_out() -> None:
    model = tower()
    w = {name: value.double() for name, value in model.state_dict().items()}
    cells = [(0, 1.7, 0), (0, -0.4, 0), (0, 0.0, -1), (1, 0.0, 2), (2, 0.0, 3), (2, 0.0, -1)]
    got = model(*(torch.tensor(column) for column in zip(*cells, strict=True)))
    for row, (field, value, category) in zip(got, cells, strict=True):
        x = w["field.weight"][field] + w["category.weight"][category]  # -1 is the last row
        if category == 0:
            rates = [math.pi * 2.0 ** (i - 2) for i in range(CONFIG.frequencies)]
            features = [value, *(math.sin(value * r) for r in rates), *(math.cos(value * r) for r in rates)]
            x = x + w["number.weight"] @ torch.tensor(features, dtype=torch.float64) + w["number.bias"]
        x = w["mix.weight"] @ x + w["mix.bias"]
        x = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        assert torch.allclose(row.double(), w["projector.weight"] @ x + w["projector.bias"], atol=1e-5)


@torch.no_grad()
def test_missing_zero_and_categories_differ() -> None:
    fields = torch.tensor([0, 0, 2, 2, 2, 2])
    values = torch.zeros(6)
    categories = torch.tensor([0, -1, 1, 2, 3, -1])
    out = tower()(fields, values, categories)
    distances = torch.cdist(out, out) + torch.eye(6)
    assert distances.min() > 1e-3
