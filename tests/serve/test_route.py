"""Auto mode's policy on plain numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasmo.serve.route import Situation, choose_route

IDLE = Situation(prompt_tokens=1000, cached_in_prefill=0, cached_in_decode=0, prefill_tokens=0, decode_sequences=0)


def auto(**known: float) -> str:
    return choose_route("auto", 128, Situation(**{**vars(IDLE), **known}))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["split", "local"])
@given(
    st.builds(
        Situation,
        st.integers(1, 10**6),
        st.integers(0, 100),
        st.integers(0, 100),
        st.floats(0, 1e6),
        st.floats(0, 1e3),
    )
)
def test_a_fixed_mode_is_the_answer(mode: str, situation: Situation) -> None:
    assert choose_route(mode, 128, situation) == mode  # type: ignore[arg-type]


def test_where_nobody_decodes_nobody_waits_for_a_local_prompt() -> None:
    assert auto() == "local"


def test_a_long_prompt_is_split_as_soon_as_it_would_hold_somebody_up() -> None:
    assert auto(decode_sequences=1) == "split"


@pytest.mark.parametrize(("tokens", "expected"), [(16, "local"), (17, "split")])
def test_a_short_prompt_stays_while_it_costs_others_less_than_a_hand_over(tokens: int, expected: str) -> None:
    # 8 sequences wait for each token: 16 x 8 = 128.
    assert auto(prompt_tokens=tokens, decode_sequences=8) == expected


def test_a_prompt_that_decode_has_cached_stays() -> None:
    assert auto(decode_sequences=8, cached_in_decode=992) == "local"
    assert auto(decode_sequences=8, cached_in_decode=992, cached_in_prefill=992) == "local"
    assert auto(decode_sequences=8, cached_in_prefill=992) == "split"


def test_a_congested_prefill_pool_gives_prompts_away() -> None:
    assert auto(decode_sequences=2, prefill_tokens=1000) == "split"
    assert auto(decode_sequences=2, prefill_tokens=3000) == "local"


@given(
    st.integers(1, 4000),
    st.floats(0, 5000),
    st.floats(0, 64),
    st.floats(0, 5000),
    st.floats(0, 64),
    st.integers(1, 500),
)
def test_it_never_turns_against_the_load(
    tokens: int, prefill: float, sequences: float, more_prefill: float, more_sequences: float, handover: int
) -> None:
    """More waiting at prefill never makes a prompt split; more sequences at decode never make it local."""

    def chosen(prefill: float, sequences: float) -> str:
        return choose_route("auto", handover, Situation(tokens, 0, 0, prefill, sequences))

    if chosen(prefill, sequences) == "local":
        assert chosen(prefill + more_prefill, sequences) == "local"
    else:
        assert chosen(prefill, sequences + more_sequences) == "split"
