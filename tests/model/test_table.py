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
    TableField("note", "text"),
    TableField("seen", "time", mean=19_000.25, std=400.0),
    TableField("born", "time"),
)
CONFIG = TableConfig(hidden=6, frequencies=3, text_buckets=11)
NONE = torch.zeros(0, dtype=torch.int64)


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
    cells: list[tuple[int, float, int, list[int]]] = [
        (0, 1.7, 0, []),
        (4, 19_783.0, 0, [45_001]),
        (3, 0.0, 0, [4, 4, 10]),
        (0, -0.4, 0, []),
        (0, 0.0, -1, []),
        (1, 0.0, 2, []),
        (5, -3_000.0, 0, [86_399]),
        (3, 0.0, 0, [0]),
        (2, 0.0, 3, []),
        (2, 0.0, -1, []),
        (3, 0.0, -1, []),
        (4, 0.0, -1, []),
    ]
    details = [(detail, at) for at, cell in enumerate(cells) for detail in cell[3]]
    columns = [torch.tensor(column) for column in zip(*(cell[:3] for cell in cells), strict=True)]
    got = model(*columns, *(torch.tensor(column) for column in zip(*details, strict=True)))
    for row, (field, value, category, parts) in zip(got, cells, strict=True):
        kind = FIELDS[field].kind
        x = w["field.weight"][field] + w["category.weight"][category]  # -1 is the last row
        if kind == "number" and category == 0:
            rates = [math.pi * 2.0 ** (i - 2) for i in range(CONFIG.frequencies)]
            features = [value, *(math.sin(value * r) for r in rates), *(math.cos(value * r) for r in rates)]
            x = x + w["number.weight"] @ torch.tensor(features, dtype=torch.float64) + w["number.bias"]
        if kind == "text" and parts:
            x = x + sum(w["gram.weight"][part] for part in parts) / len(parts)
        if kind == "time" and category == 0:
            days = value + parts[0] / 86_400
            angles = [2 * math.pi * days / period for period in (1, 7, 30.436875, 365.2425)]
            features = [(days - FIELDS[field].mean) / FIELDS[field].std, *map(math.sin, angles), *map(math.cos, angles)]
            x = x + w["time.weight"] @ torch.tensor(features, dtype=torch.float64) + w["time.bias"]
        x = w["mix.weight"] @ x + w["mix.bias"]
        x = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        assert torch.allclose(row.double(), w["projector.weight"] @ x + w["projector.bias"], atol=1e-4), kind


@torch.no_grad()
def test_missing_zero_and_categories_differ() -> None:
    fields = torch.tensor([0, 0, 2, 2, 2, 2])
    values = torch.zeros(6)
    categories = torch.tensor([0, -1, 1, 2, 3, -1])
    out = tower()(fields, values, categories, NONE, NONE)
    distances = torch.cdist(out, out) + torch.eye(6)
    assert distances.min() > 1e-3


def test_fields_of_numbers_and_categories_alone_have_the_weights_they_always_had() -> None:
    names = {name.split(".")[0] for name, _ in TableTower(CONFIG, FIELDS[:3], 4).named_parameters()}
    assert names == {"category", "field", "number", "mix", "projector"}


@torch.no_grad()
def test_a_cell_is_embedded_alike_alone_and_among_others() -> None:
    model = tower()
    fields, categories = torch.tensor([3, 4, 3]), torch.zeros(3, dtype=torch.int64)
    values = torch.tensor([0.0, 19_000.0, 0.0])
    together = model(fields, values, categories, torch.tensor([1, 2, 500, 7]), torch.tensor([0, 0, 1, 2]))
    alone = model(fields[2:], values[2:], categories[2:], torch.tensor([7]), torch.tensor([0]))
    assert torch.allclose(together[2:], alone, atol=1e-6)
