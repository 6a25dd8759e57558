"""How long drafts are: costs that are measured, worth that is measured, and drafts that switch themselves off."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import LegalGuesses, scripted_engine, set_drafters
from hypothesis import given
from hypothesis import strategies as st

import jumpforward as jf
from jumpforward.decoding.costs import FixedCosts, MeasuredCosts
from jumpforward.decoding.pace import MAX_GUESSES, Claim, Pace, Paces
from jumpforward.decoding.sampling import SamplingOptions


@given(pass_ms=st.floats(0.5, 200), share=st.floats(0.0, 0.5), seed=st.integers(0, 9), outliers=st.floats(0, 0.2))
def test_costs_are_the_line_behind_noisy_passes(pass_ms: float, share: float, seed: int, outliers: float) -> None:
    random, costs = np.random.default_rng(seed), MeasuredCosts()
    for _ in range(300):
        num_rows = int(random.integers(1, 18))
        seconds = 1e-3 * pass_ms * (1 + share * num_rows) * random.normal(1, 0.02)
        costs.observe(num_rows, seconds * (20 if random.random() < outliers else 1))
        costs.observe(500, 1e9)  # a prompt
    line = costs.now
    for num_rows in (1, 4, 12):
        expected = 1e-3 * pass_ms * (1 + share * num_rows)
        assert line.pass_s + num_rows * line.row_s == pytest.approx(expected, rel=0.15)


def test_costs_are_sensible_before_anything_is_known() -> None:
    costs = MeasuredCosts()
    assert 0.01 < costs.now.row_s / costs.now.pass_s < 0.1
    for _ in range(20):
        costs.observe(1, 0.04)
    assert costs.now.pass_s == pytest.approx(0.04, rel=0.1)
    assert 0.01 < costs.now.row_s / costs.now.pass_s < 0.1


def test_threads_share_costs_and_paces() -> None:
    paces = Paces(MeasuredCosts(), shared=True)

    def work(seed: int) -> None:
        for step in range(300):
            pace = paces.of(SamplingOptions(temperature=1.0, seed=seed))
            paces.costs.observe(1 + step % 9, 0.01)
            pace.learn([(Claim.of("x", True, 0.5), step % 2 == 0)], 2, 3)
            pace.refuse(Claim.of("y", True, 0.5))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    pace = paces.of(SamplingOptions(temperature=1.0, seed=9))
    assert pace.worth(Claim.of("x", True, 0.5)) == pytest.approx(0.5, abs=0.1)
    assert paces.of(SamplingOptions()) is not pace
    assert paces.of(SamplingOptions(temperature=1.04)) is pace
    for top_k in range(1, 200):
        paces.of(SamplingOptions(temperature=1.0, top_k=top_k))
    assert len(paces._paces) <= 64


def test_worth_is_what_was_measured_and_forgets() -> None:
    pace = Pace(FixedCosts(1.0, 0.03))
    sure, unsure = Claim.of("a", True, 0.9), Claim.of("a", True, 0.3)
    assert pace.worth(sure) == 0.9
    pace.learn([(sure, False)] * 200, 1, 2)
    assert pace.worth(sure) < 0.1
    assert pace.worth(unsure) == 0.3
    assert pace.worth(Claim.of("a", False, 0.9)) == 0.9
    for _ in range(1000):
        pace.refuse(sure)
    assert pace.worth(sure) > 0.85  # it may be tried again
    pace.learn([(unsure, True)] * 200, 1, 2)
    assert pace.worth(unsure) > 0.9


def test_the_bar_is_the_price_of_a_row_over_that_of_a_token() -> None:
    pace = Pace(FixedCosts(pass_s=10.0, row_s=1.0))
    for _ in range(200):
        pace.learn([], 3, 5)
    assert pace.bar(1) == pytest.approx(1 * 3 / (10 + 5))
    assert pace.bar(5) == pytest.approx(1 * 3 / (10 / 5 + 5))
    for _ in range(200):
        pace.learn([], 3, 5, spent_s=4.0)  # by slow sources
    assert pace.bar(1) == pytest.approx(1 * 3 / (10 + 5 + 4))
    assert pace.token_s(1) == pytest.approx((10 + 5 + 4) / 3)


@pytest.mark.parametrize(("row_s", "most"), [(0.0, 1.0), (0.05, 0.25), (1.0, 0.1)])
def test_a_source_that_is_wrong_switches_itself_off(row_s: float, most: float) -> None:
    engine = scripted_engine(memory="grammar", pass_costs=FixedCosts(1.0, row_s))
    set_drafters(engine, LegalGuesses(0, 4, engine.vocabulary.width))
    grammar = jf.regex("[a-z]{60}")
    engine.generate("a", grammar)  # which learns that
    result = engine.generate("a", grammar, temperature=0.0)
    masked = engine.generate("a", grammar, policy="masked")
    assert result.token_ids == masked.token_ids
    rows = sum(length * count for length, count in result.stats.chunk_lengths.items())
    cost, plain = result.stats.num_forward_passes + row_s * rows, len(masked.token_ids) * (1 + row_s)
    assert cost < 1.03 * plain + 1e-9
    assert result.stats.num_proposed <= most * MAX_GUESSES * len(masked.token_ids)
