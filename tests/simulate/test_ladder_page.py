from __future__ import annotations

import pytest

from elasmo.simulate.ladder import INTERVENTIONS, climb
from elasmo.simulate.ladder_page import claims, ladder_json, ladder_lines, make_case, page, verdict

FIXED = (("tp", 2), ("micro_batch", 1))
WORDS = ("Llama-3-8B", "8xH100", 2048, 16, None, "bf16", None, FIXED)


@pytest.mark.parametrize(
    ("simulated", "said"),
    [(0.61, "reproduced"), (0.56, "reproduced"), (0.54, "contradicted"), (0.7, "exceeded"), (None, "unknown")],
)
def test_a_claim_is_reproduced_within_a_tenth(simulated: float | None, said: str) -> None:
    assert verdict(simulated, 0.61) == said


def test_a_page_has_a_row_a_rung_and_a_verdict_a_claim() -> None:
    text = page(
        (WORDS,), (("the same in fp8", (*WORDS[:5], "fp8", None, FIXED)),), ((4.0, -0.2, 0.9), (8.0, -0.44, 0.4))
    )
    made = climb(make_case(*WORDS))
    assert made.first is not None and made.last is not None
    own = claims(made.first, made.last)
    assert own.cost is not None and own.cost == pytest.approx(1 - made.first.seconds**-1 / made.last.seconds**-1)
    assert f"| {own.mfu:.1%} | {verdict(own.mfu, 0.61)} | {-own.cost:+.0%} |" in text
    assert "| 4 | -20% | contradicted | 90% |" in text and "| 8 | -44% | reproduced | 40% |" in text
    for name in INTERVENTIONS:
        assert text.count(f"| + {name} |") == text.count(f"| {name} |") == 1
    assert "the same in fp8" in text


def test_a_ladder_is_plain_data_too() -> None:
    made = climb(make_case("Llama-3-8B", "8xTPU v5p", 2048, 16, fixed=FIXED))
    plain = ladder_json(made)
    assert len(plain["cumulative"]) == 9 and plain["cumulative"][0]["joules_per_token"] is None
    assert set(plain["without"]) == set(plain["alone"]) == set(INTERVENTIONS)
    assert any("unknown" in line for line in ladder_lines(made))
