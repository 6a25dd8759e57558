"""Where rounding decides between two ways to spell a text in a unigram model's tokens.

A way's score is a sum of its tokens' scores, from left to right. Ways with the same tokens in another order, such as 0
and 00 or 00 and 0 for three zeros, have the same score but for the last bits, and those depend on where the sum began:
behind other text the other way may win. So ways that are that close count as equally good, and only what they share as
known.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

from jumpforward.vocab.agreeing import common_beginning

_CLOSE = 1e-6  # sums of float64 numbers below 1e5 are exact to 1e-10
_UNKNOWN_PENALTY = 10.0  # of a character that is no token, below the least score: tokenizers' own number
_CACHED_TEXTS = 4096


class _Best(NamedTuple):
    """The best ways through a text.

    Attributes:
        score: theirs.
        ends: where their tokens end, as far as they agree.
        is_one: whether they agree up to the end.
    """

    score: float
    ends: tuple[int, ...]
    is_one: bool


class UnigramPaths:
    """The best ways of a unigram model, and how far they are known."""

    def __init__(self, scored: Sequence[tuple[str, float]]) -> None:
        """Take the tokens as the model writes them, with their scores."""
        self._scores = {piece: score for piece, score in scored if piece}
        self._longest = max(map(len, self._scores))
        self._unknown = min(self._scores.values()) - _UNKNOWN_PENALTY
        self._best = lru_cache(maxsize=_CACHED_TEXTS)(self._best_uncached)

    def len_known(self, text: str) -> int:
        """Return the length of the beginning of a text whose tokens rounding has no part in."""
        for length in range(len(text)):  # each is made of the ones before it, which are remembered
            self._best(text[:length])
        best = self._best(text)
        return len(text) if best.is_one else (0, *best.ends)[-1]

    def _best_uncached(self, text: str) -> _Best:
        if not text:
            return _Best(0.0, (), is_one=True)
        starts = range(max(0, len(text) - self._longest), len(text))
        scores = [self._scores.get(text[start:], -inf) for start in starts]
        scores[-1] = max(scores[-1], self._unknown)
        ways = [(self._best(text[:start]), last) for start, last in zip(starts, scores, strict=True) if last > -inf]
        score = max(before.score + last for before, last in ways)
        close = [before for before, last in ways if before.score + last > score - _CLOSE]
        if len(close) == 1 and close[0].is_one:
            return _Best(score, (*close[0].ends, len(text)), is_one=True)
        return _Best(score, common_beginning([before.ends for before in close]), is_one=False)
