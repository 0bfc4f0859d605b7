"""What the page draws: bars that add up, one a value for few integers, none for a constant."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from elasmo.content.sketch import Numbers
from elasmo.ingest.gate_report import Check, GateReport
from elasmo.ingest.profile import Profile
from elasmo.ingest.profile_page import BINS, bars, card, facet, render
from elasmo.ingest.profiling import profile_table


def test_few_integers_have_a_bar_each() -> None:
    drawn = facet("value", Numbers.of(np.array([1, 1, 2, 4])))
    assert [(bar.label, bar.value, bar.percent) for bar in drawn.bars] == [
        ("1", "50.0 %", 100),
        ("2", "25.0 %", 50),
        ("3", "0.0 %", 0),
        ("4", "25.0 %", 50),
    ]
    assert ("median", "1") in drawn.figures and ("mean", "2") in drawn.figures


def test_other_numbers_have_equal_bins_from_end_to_end() -> None:
    drawn = facet("value", Numbers.of(np.linspace(0, 24, 240, endpoint=False)))
    assert len(drawn.bars) == BINS and drawn.bars[0].label.startswith("0 to ")
    assert all(bar.percent > 85 for bar in drawn.bars)


def test_a_constant_is_said_and_not_drawn() -> None:
    drawn = facet("width", Numbers.of(np.array([8, 8, np.nan])))
    assert drawn.bars == () and drawn.figures == (("always", "8"), ("not finite", "1"))


def test_the_ends_of_the_doubles_are_drawn_without_an_error() -> None:
    drawn = facet("value", Numbers.of(np.array([-1.7e308, 1.7e308, 1.7e308])))
    assert [bar.value for bar in drawn.bars] == ["33.3 %", "66.7 %"]


def test_categories_are_ordered_by_count_and_keys_are_left_out() -> None:
    assert [(bar.label, bar.percent) for bar in bars({"a": 1, "b": 4})] == [("b", 100), ("a", 25)]
    columns = profile_table(pa.table({"key": ["k1", "k2"], "kind": ["cat", "cat"]})).columns
    assert card("key", columns["key"]).mix == () and len(card("kind", columns["kind"]).mix) == 1


def test_the_gate_s_verdict_is_on_the_page() -> None:
    check = Check("rows", "t", "block", {"share": 0.6}, {}, "t had 5 rows and has <2>.")
    profile = Profile("pets", "silver", "abc", {"t": profile_table(pa.table({"a": [1]}))})
    page = render(profile, GateReport("abc", "def", (check,), "today by me"))
    assert "t had 5 rows and has &lt;2&gt;." in page and "Accepted today by me." in page and ">def<" in page
    assert "Verdict" not in render(profile)
