"""A matcher that permits only what can still be completed within a budget of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jumpforward.matching.automaton import AutomatonMatcher
from jumpforward.matching.matcher import LimitedMatcher

if TYPE_CHECKING:
    import torch


class CompletingMatcher(LimitedMatcher):
    """An automaton's matcher that counts tokens. See :class:`jumpforward.matching.matcher.Matcher`.

    A token is legal only if the tokens that are left behind it can make the output complete; an end token behind it
    takes one too, and need not fit. Some token is legal as long as the budget has room for the shortest output.
    """

    _inner: AutomatonMatcher

    def __init__(self, inner: AutomatonMatcher, num_left: int) -> None:
        super().__init__(inner)
        self._num_left = num_left

    def consume(self, token: int) -> bool:
        """Move over a token; False, and no move, where it is not legal or leaves no way to the end."""
        if not self._inner.consume(token):
            return False
        fewest = self._inner.fewest_tokens
        if not self.is_terminated and (fewest is None or fewest > self._num_left - 1):
            self._inner.rollback(1)
            return False
        self._num_left -= 1
        return True

    def rollback(self, num_tokens: int) -> None:
        """Undo the last ``num_tokens`` tokens; ValueError where fewer have been consumed."""
        self._inner.rollback(num_tokens)
        self._num_left += num_tokens

    def fork(self) -> CompletingMatcher:
        """Return an independent matcher at the same place."""
        return CompletingMatcher(self._inner.fork(), self._num_left)

    def has_choice(self) -> bool:
        """Return False, for not known: the budget may leave a single token."""
        return False

    def fill_bitmask(self, bitmask: torch.Tensor, row: int) -> None:
        """Write the tokens that leave a way to the end into a row of ``bitmask``."""
        self._inner.fill_completing_bitmask(bitmask, row, self._num_left)
