"""Masked sampling: what is drawn, from what, and that a row's company does not matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xgrammar
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from jumpforward.decoding.sampling import Sampler, SamplingOptions, apply_masks

WIDTH = 50
LEGAL = [3, 7, 8, 20, 31, 32, 49]


def bitmask(rows: int) -> torch.Tensor:
    words = xgrammar.allocate_token_bitmask(rows, WIDTH)
    words.zero_()
    for token in LEGAL:
        words[:, token // 32] |= np.int32(np.uint32(1 << (token % 32)).view(np.int32)).item()
    return words


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed)) * 2


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.5, "top_p": 0.7},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
]


@given(rows=st.integers(1, 4), width=st.integers(1, 130), share=st.sampled_from([0.0, 0.03, 0.5, 1.0]), data=st.data())
def test_masks_are_applied_as_xgrammar_applies_them(rows: int, width: int, share: float, data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    words = np.zeros((rows, -(-width // 32) * 32), dtype=np.uint8)
    words[:, :] = random.random(words.shape) < share  # bits behind the width too
    masks = torch.from_numpy(np.packbits(words, axis=-1, bitorder="little").view(np.int32))
    scores = torch.from_numpy(random.normal(size=(rows, width)).astype(np.float32))
    scores.view(-1)[:: data.draw(st.integers(1, 9))] = data.draw(st.sampled_from([torch.nan, torch.inf, -torch.inf]))
    expected = scores.clone()
    xgrammar.apply_token_bitmask_inplace(expected, masks)
    apply_masks(scores, masks)
    torch.testing.assert_close(scores, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("options", OPTIONS)
def test_draws_follow_the_warped_masked_distribution(options: dict[str, Any]) -> None:
    num_draws = 4000
    choices = Sampler(SamplingOptions(**options, seed=11)).choose(
        logits(1).repeat(num_draws, 1), bitmask(num_draws), range(num_draws)
    )
    masked = logits(1)
    masked[:, [token for token in range(WIDTH) if token not in LEGAL]] = -torch.inf
    law = SamplingOptions(**options).warpers()(torch.LongTensor(), masked).softmax(-1)[0].double()
    support = [token for token in range(WIDTH) if law[token] > 0]
    assert set(choices) <= set(support)
    counts = [choices.count(token) for token in support]
    expected = (law[support] / law[support].sum() * num_draws).tolist()
    assert chisquare(counts, expected).pvalue > 1e-3


@pytest.mark.parametrize("options", [{}, *OPTIONS])
def test_a_row_gives_the_same_alone_and_in_any_company(options: dict[str, Any]) -> None:
    seed = {} if not options else {"seed": 3}
    together = Sampler(SamplingOptions(**options, **seed)).choose(logits(6), bitmask(6), range(10, 16))
    for row in range(6):
        alone = Sampler(SamplingOptions(**options, **seed)).choose(logits(6)[row : row + 1], bitmask(1), [10 + row])
        assert alone == [together[row]]


def test_greedy_is_the_largest_legal_logit() -> None:
    expected = [max(LEGAL, key=lambda token: float(row[token])) for row in logits(20)]
    assert Sampler(SamplingOptions()).choose(logits(20), bitmask(20), range(20)) == expected


def test_positions_have_noise_of_their_own() -> None:
    rows = logits(1).repeat(40, 1)
    sampler = Sampler(SamplingOptions(temperature=1.0, seed=0))
    assert len(set(sampler.choose(rows.clone(), bitmask(40), range(40)))) > 2
    assert len(set(sampler.choose(rows.clone(), bitmask(40), [5] * 40))) == 1
    other = Sampler(SamplingOptions(temperature=1.0, seed=1))
    assert other.choose(rows.clone(), bitmask(40), range(40)) != sampler.choose(rows.clone(), bitmask(40), range(40))


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_rows_without_a_finite_legal_maximum_are_none(value: float) -> None:
    for options in (SamplingOptions(), SamplingOptions(temperature=1.0, seed=0)):
        rows = logits(2)
        rows[1, LEGAL] = value
        first, second = Sampler(options).choose(rows, bitmask(2), [0, 1])
        assert first in LEGAL
        assert second is None
