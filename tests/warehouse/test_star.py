"""Facts and dimensions of a shop, and what makes them so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasmo.warehouse.relation import database_relations
from elasmo.warehouse.star import Star, identifier, propose_star
from tests.warehouse.relations import relation
from tests.warehouse.shop import shop


@pytest.fixture(scope="module")
def sold(tmp_path_factory: pytest.TempPathFactory) -> Star:
    folder = tmp_path_factory.mktemp("shop")
    return propose_star(database_relations(shop(folder / "shop.db"), folder))[0]


def links(star: Star) -> set[tuple[str, tuple[str, ...], str]]:
    return {(table.name, r.columns, r.to) for table in star.tables for r in table.references}


def test_a_shop_is_a_snowflake_about_its_order_lines(sold: Star) -> None:
    assert sold.shape == "snowflake"
    assert {table.name: table.key for table in sold.tables} == {
        "dim_categories": ("id",),
        "dim_products": ("id",),
        "dim_customers": ("customer_id",),
        "dim_country": ("country",),
        "dim_city": ("city",),
        "fact_order_lines": ("order_no", "line_no"),
    }
    assert links(sold) == {
        ("dim_products", ("category_id",), "dim_categories"),
        ("dim_city", ("country",), "dim_country"),
        ("fact_order_lines", ("customer_id",), "dim_customers"),
        ("fact_order_lines", ("product_id",), "dim_products"),
        ("fact_order_lines", ("city",), "dim_city"),
    }
    assert sold.broken == () and sold.notes == ()


def test_columns_have_roles_and_a_row_a_meaning(sold: Star) -> None:
    fact = sold.table("fact_order_lines")
    assert {c.name: c.role for c in fact.columns} == {
        "order_no": "key", "line_no": "key", "ordered_at": "time", "customer_id": "reference",
        "product_id": "reference", "city": "reference", "quantity": "measure", "price": "measure",
    }  # fmt: skip
    assert {c.name: c.summed for c in fact.columns if c.role == "measure"} == {"quantity": True, "price": False}
    assert fact.grain.startswith("one row for each order_no, line_no of order_lines") and "at ordered_at" in fact.grain
    weight = next(c for c in sold.table("dim_products").columns if c.name == "weight")
    assert weight.role == "attribute"
    assert {c.name: c.nullable for c in fact.columns if c.nullable} == {"customer_id": True, "city": True}
    assert all(0 < table.score <= 1 and table.evidence for table in sold.tables)


def test_a_table_comes_after_those_that_it_refers_to(sold: Star) -> None:
    names = [table.name for table in sold.tables]
    assert all(names.index(r.to) < names.index(table.name) for table in sold.tables for r in table.references)


def test_what_is_left_out_is_neither_reference_nor_dimension(tmp_path: Path) -> None:
    relations = database_relations(shop(tmp_path / "shop.db"), tmp_path)
    star, _ = propose_star(relations, {"order_lines.customer_id", "order_lines.country"})
    assert {(t, to) for t, _, to in links(star)} == {
        ("dim_products", "dim_categories"),
        ("fact_order_lines", "dim_products"),
        ("fact_order_lines", "dim_city"),
    }


def test_a_table_of_references_alone_is_a_bridge() -> None:
    tags: dict[str, Any] = {"id": [f"t{n}" for n in range(40)], "word": [f"word {n % 30}" for n in range(40)]}
    posts: dict[str, Any] = {"id": [f"p{n}" for n in range(50)], "text": [f"text {n % 45}" for n in range(50)]}
    both = {"post_id": [f"p{n % 50}" for n in range(300)], "tag_id": [f"t{n // 50 * 7 % 40}" for n in range(300)]}
    star, _ = propose_star([relation("tags", tags), relation("posts", posts), relation("tagged", both)])
    bridge = star.table("bridge_tagged")
    assert bridge.key == ("post_id", "tag_id") and {r.to for r in bridge.references} == {"dim_tags", "dim_posts"}
    assert star.shape == "star"


@pytest.mark.parametrize(
    ("rows", "days", "partition"), [(250_000, 59, ("at", "month")), (250_000, 700, ("at", "year")), (5_000, 60, None)]
)
def test_parquet_is_cut_by_a_period_that_fills_a_file(rows: int, days: int, partition: object) -> None:
    import numpy as np

    moments = np.datetime64("2023-01-01") + (np.arange(rows) * days // rows).astype("timedelta64[D]")
    table = relation("t", {"id": np.arange(rows), "at": moments.astype(str), "amount": np.arange(rows) / 7}, rows)
    (fact,) = propose_star([table])[0].tables
    assert fact.partition == partition and fact.sort == "at"


def test_names_need_no_thought_in_sql() -> None:
    assert [identifier(name) for name in ("record.age", "2nd", "a b-c", "ö", "--")] == [
        "record_age", "_2nd", "a_b_c", "ö", "column"
    ]  # fmt: skip
    star, _ = propose_star([relation("t", {"a.b": [1, 2], "A b": [3, 4], "a_b": ["x", "y"]})])
    assert [column.name for column in star.tables[0].columns] == ["a_b", "A_b_2", "a_b_3"]
