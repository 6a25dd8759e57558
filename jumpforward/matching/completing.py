"""A matcher that permits only what can still be completed within a budget of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jumpforward.matching.automaton import AutomatonMatcher

if TYPE_CHECKING:
    import torch


class CompletingMatcher:
    """An automaton's matcher that counts tokens. See :class:`jumpforward.matching.matcher.Matcher`.

    A token is legal only if the tokens that are left behind it can make the output complete; an end token behind it
    takes one too, and need not fit. Some token is legal as long as the budget has room for the shortest output.
    """

    def __init__(self, inner: AutomatonMatcher, num_left: int) -> None:
        self._inner = inner
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

    def forced_bytes(self) -> bytes:
        """Return the bytes that every completion starts with, whatever the budget."""
        return self._inner.forced_bytes()

    def fill_bitmask(self, bitmask: torch.Tensor, row: int) -> None:
        """Write the tokens that leave a way to the end into a row of ``bitmask``."""
        self._inner.fill_completing_bitmask(bitmask, row, self._num_left)

    def live_bytes(self, behind: bytes = b"") -> bytes:
        """Return the bytes that may come next, whatever the budget, in ascending order."""
        return self._inner.live_bytes(behind)

    def missing_bytes(self) -> bytes:
        """Return the bytes, anywhere from here on, that no token contains."""
        return self._inner.missing_bytes()

    @property
    def is_accepting(self) -> bool:
        """Whether the output so far is complete."""
        return self._inner.is_accepting

    @property
    def is_terminated(self) -> bool:
        """Whether an end token has been consumed."""
        return self._inner.is_terminated
