from __future__ import annotations

import pytest
from scipy.stats import kendalltau

from elasmo.simulate.score import Point, kendall_tau, score, sweep_taus


def test_a_score_has_median_p90_worst_and_bias() -> None:
    made = score([Point("q", "s", "", predicted, 100.0) for predicted in (90.0, 100.0, 120.0)])
    assert (made.n, made.median, made.worst, made.bias) == (3, pytest.approx(0.1), pytest.approx(0.2), 0.0)


@pytest.mark.parametrize("b", [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [1, 3, 2, 5, 4], [1, 1, 2, 2, 3]])
def test_tau_is_scipys(b: list[float]) -> None:
    a = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert kendall_tau(a, b) == pytest.approx(kendalltau(a, b).statistic)


def test_a_constant_ranking_has_no_tau_and_small_sweeps_none() -> None:
    assert kendall_tau([1, 1], [1, 2]) is None
    assert sweep_taus([Point("q", "s", "", i, i, "sweep") for i in (1.0, 2.0, 3.0)]) == {}
