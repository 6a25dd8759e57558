"""A matcher that permits no end token before an output has a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jumpforward.matching.matcher import LimitedMatcher, Matcher

if TYPE_CHECKING:
    import torch


class LastingMatcher(LimitedMatcher):
    """A matcher that counts tokens. See :class:`jumpforward.matching.matcher.Matcher`.

    Where the grammar permits nothing but an end token, and that comes too early, nothing is legal.
    """

    def __init__(self, inner: Matcher, num_missing: int, end_ids: Sequence[int]) -> None:
        """Permit an end token behind ``num_missing`` tokens more."""
        super().__init__(inner)
        self._num_missing = num_missing  # below 0 behind more of them
        self._end_ids = end_ids

    def consume(self, token: int) -> bool:
        """Move over a token; False, and no move, where it is not legal or ends the output too early."""
        if (self._num_missing > 0 and token in self._end_ids) or not self._inner.consume(token):
            return False
        self._num_missing -= 1
        return True

    def rollback(self, num_tokens: int) -> None:
        """Undo the last ``num_tokens`` tokens."""
        self._inner.rollback(num_tokens)
        self._num_missing += num_tokens

    def fork(self) -> LastingMatcher:
        """Return an independent matcher at the same place."""
        return LastingMatcher(self._inner.fork(), self._num_missing, self._end_ids)

    def has_choice(self) -> bool:
        """Whether more than one token is known to be legal; an end token is none of those that the grammar counts."""
        return self._inner.has_choice()

    def fill_bitmask(self, bitmask: torch.Tensor, row: int) -> None:
        """Write the legal tokens into a row of ``bitmask``."""
        self._inner.fill_bitmask(bitmask, row)
        if self._num_missing > 0:
            words = bitmask.numpy()[row].view(np.uint32)
            for token in self._end_ids:
                words[token // 32] &= ~np.uint32(1 << token % 32)
