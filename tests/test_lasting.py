"""A matcher that lasts: laws 4 and 5 with a least number of tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xgrammar
from helpers import scripted_engine
from hypothesis import given
from hypothesis import strategies as st

import jumpforward as jf
from jumpforward.grammar.bytewise import np_bits
from jumpforward.matching.lasting import LastingMatcher

ENGINES = {automata: scripted_engine(["ab", "aba", "ba"], automata=automata) for automata in (True, False)}
ENDS = (3, 31, 63)  # with the sign bits of two words
GRAMMARS = [jf.regex("(ab?){0,5}"), jf.choice(["ab", "abab", "b"])]


def legal(matcher: LastingMatcher, width: int) -> list[int]:
    bitmask = torch.zeros_like(xgrammar.allocate_token_bitmask(2, width))
    matcher.fill_bitmask(bitmask, 1)
    assert not bitmask[0].any()
    return [int(token) for token in np.flatnonzero(np_bits(bitmask.numpy()[1]))]


@pytest.mark.parametrize("automata", [True, False])
@given(
    grammar=st.sampled_from(GRAMMARS),
    num_missing=st.integers(0, 6),
    draws=st.lists(st.integers(0, 9), max_size=9),
    back=st.integers(0, 9),
)
def test_legal_is_what_the_grammar_permits_and_no_end_too_early(automata, grammar, num_missing, draws, back) -> None:
    engine = ENGINES[automata]
    ends, width = engine.vocabulary.end_ids, engine.vocabulary.width
    plain = engine.compiler.compile(grammar).matcher()
    matcher = LastingMatcher(engine.compiler.compile(grammar).matcher(), num_missing, ends)
    states: list[list[int]] = []
    for draw in draws:
        permitted = legal(plain, width)
        expected = [token for token in permitted if token not in ends or len(states) >= num_missing]
        found = legal(matcher, width)
        assert found == expected
        assert [token for token in range(width) if matcher.fork().consume(token)] == expected
        states.append(found)
        if not found:
            states.pop()
            break
        token = found[draw % len(found)]
        assert plain.consume(token)
        assert matcher.consume(token)
        assert (matcher.is_accepting, matcher.is_terminated) == (plain.is_accepting, plain.is_terminated)
    count = min(back, len(states))
    matcher.rollback(count)
    if count:
        assert legal(matcher, width) == states[-count]


def test_every_bit_of_a_word_can_be_cleared() -> None:
    matcher = LastingMatcher(_All(), 1, ENDS)
    assert legal(matcher, 96) == [token for token in range(96) if token not in ENDS]


class _All:
    """Permits everything."""

    def fill_bitmask(self, bitmask: torch.Tensor, row: int) -> None:
        bitmask[row] = -1
