"""A small shop in SQLite, made by a seed: orders with denormalised cities, customers, products and their categories."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np

CITIES = {
    "Oslo": ("Norway", "Europe"), "Bergen": ("Norway", "Europe"), "Lyon": ("France", "Europe"),
    "Nice": ("France", "Europe"), "Kyoto": ("Japan", "Asia"), "Osaka": ("Japan", "Asia"), "Lima": ("Peru", "America"),
    "Quito": ("Ecuador", "America"),
}  # fmt: skip
CREATE = """
CREATE TABLE categories (id INTEGER, title TEXT);
CREATE TABLE products (id INTEGER, title TEXT, category_id INTEGER, weight REAL);
CREATE TABLE customers (customer_id TEXT, name TEXT, email TEXT);
CREATE TABLE order_lines (
  order_no INTEGER, line_no INTEGER, ordered_at TEXT, customer_id TEXT, product_id INTEGER, city TEXT, country TEXT,
  continent TEXT, quantity INTEGER, price REAL
);
"""


def shop(path: Path, lines: int = 3000, seed: int = 0) -> str:
    """Writes the database without a declared key or reference; returns its URL."""
    generator = np.random.default_rng(seed)
    cities = list(CITIES)
    with sqlite3.connect(path) as database:
        database.executescript(CREATE)
        database.executemany("INSERT INTO categories VALUES (?, ?)", [(10 + n, f"category {n}") for n in range(6)])
        products = [(1 + n, f"product {n}", 10 + n % 6, float(n % 17) / 4) for n in range(60)]
        database.executemany("INSERT INTO products VALUES (?, ?, ?, ?)", products)
        customers = [(f"C{n:04d}", f"Name {n % 150}", f"n{n}@example.org") for n in range(200)]
        database.executemany("INSERT INTO customers VALUES (?, ?, ?)", customers)
        rows = []
        for number in range(lines):
            city = None if generator.random() < 0.02 else cities[generator.integers(len(cities))]
            country, continent = CITIES[city] if city else (None, None)
            day, second = generator.integers(0, 700), generator.integers(0, 86400)
            moment = np.datetime64("2022-01-01T00:00:00") + np.timedelta64(int(day) * 86400 + int(second), "s")
            customer = None if generator.random() < 0.03 else f"C{generator.integers(200):04d}"
            rows.append(
                (
                    1000 + number // 3, 1 + number % 3, str(moment).replace("T", " "), customer,
                    int(generator.integers(1, 61)), city, country, continent, int(generator.integers(1, 30)),
                    round(float(generator.lognormal(3, 1)), 2),
                )
            )  # fmt: skip
        database.executemany(f"INSERT INTO order_lines VALUES ({', '.join('?' * 10)})", rows)
    database.close()
    return f"sqlite:///{path}"
