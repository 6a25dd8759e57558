"""The mask rows of a draft: filled where somebody looks at them, the others while the model is at work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jumpforward.matching.matcher import Matcher

if TYPE_CHECKING:
    import torch


class DraftMasks:
    """What is legal at each position of a draft.

    Most rows decide how the draft goes on: sources look at them, and a position with one legal token needs no model.
    What nobody has looked at is put off by :meth:`look_later` and filled by :meth:`complete`, behind the launch of
    the pass: where that is asynchronous, filling costs no time of its own.

    Attributes:
        bitmask: int32, shape (rows, ceil(width / 32)), 1 = legal; row i is what may stand where the draft's token i
            stands. Unread rows hold what was left there until :meth:`complete`.
    """

    def __init__(self, bitmask: torch.Tensor) -> None:
        self.bitmask = bitmask
        self._words = bitmask.numpy()
        self._unread: list[int] = []

    def begin(self) -> None:
        """Begin another draft."""
        self._unread = []

    def look(self, row: int, matcher: Matcher) -> np.ndarray:
        """Return a row, int32, shape (words,), of a matcher that stands at its place: filled now, if it is not yet."""
        if self._unread and self._unread[-1] == row:
            self._unread.pop()
            matcher.fill_bitmask(self.bitmask, row)
        words: np.ndarray = self._words[row]
        return words

    def look_later(self, row: int) -> None:
        """Leave a row, behind all others so far, unread; until somebody looks."""
        self._unread.append(row)

    def is_dead_end(self, row: int) -> bool:
        """Whether nothing is legal at a row; what is unread has a choice."""
        return row not in self._unread and not self._words[row].any()

    def complete(self, tokens: Sequence[int], matcher: Matcher) -> None:
        """Fill what is unread, along a draft's tokens; the matcher stands where they begin, and is left there."""
        num_moved = 0
        try:
            for row in self._unread:
                for token in tokens[num_moved:row]:
                    if not matcher.consume(token):
                        raise RuntimeError("the matcher does not stand where the draft begins")
                    num_moved += 1
                matcher.fill_bitmask(self.bitmask, row)
        finally:
            matcher.rollback(num_moved)
        self._unread = []
