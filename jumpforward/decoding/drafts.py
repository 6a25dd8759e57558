"""Drafts: tokens proposed ahead of the model, and the masks under which it is asked about them.

A drafter can cost rows of a chunk. It can never change the output: a draft token is kept only where the model's
own choice, under the same mask and the same random number, is that token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from jumpforward.decoding.boundary import Boundary
from jumpforward.matching.matcher import Matcher
from jumpforward.stats import Counters

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DraftView:
    """What a drafter sees: the sequence with the draft so far behind it, and the matcher at its end.

    The matcher is the request's own, moved along the draft. Query it; fork it before moving it. Nothing here may be
    kept: it changes as soon as ``propose`` returns.
    """

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    matcher: Matcher


class Drafter(Protocol):
    """A source of drafts."""

    name: str

    def propose(self, view: DraftView) -> Sequence[int]:
        """Return tokens that may come next, best first guess at each position; empty for no idea."""
        ...


class ForcedText:
    """Drafts the canonical tokens of the bytes that the grammar forces."""

    name = "forced"

    def __init__(self, boundary: Boundary) -> None:
        self._boundary = boundary

    def propose(self, view: DraftView) -> Sequence[int]:
        """Return the canonical tokens of the forced bytes, the withheld tail included."""
        forced = view.matcher.forced_bytes()
        return self._boundary.spell(view.output_ids, forced).ids if forced else ()


@dataclass
class Draft:
    """A walk of the matcher ahead of the sequence.

    Mask row i holds what is legal where ``tokens[i]`` stands; a last row, behind all of them, is there unless the
    output cannot go on.

    Attributes:
        tokens: the tokens, in order.
        is_certain: for each, whether it is the only legal one; the model need not be asked about those.
        has_next: whether there is a mask row behind the last token.
    """

    tokens: list[int] = field(default_factory=list)
    is_certain: list[bool] = field(default_factory=list)
    has_next: bool = True

    @property
    def open_rows(self) -> list[int]:
        """The rows at which the model is asked."""
        rows = [row for row, certain in enumerate(self.is_certain) if not certain]
        return [*rows, len(self.tokens)] if self.has_next else rows

    @property
    def num_proposed(self) -> int:
        """How many tokens the model is asked about."""
        return len(self.tokens) - sum(self.is_certain)


class DraftBuilder:
    """Walks a matcher along what is certain and what the drafters propose, filling one mask row a position."""

    def __init__(self, drafters: Sequence[Drafter], counters: Counters, *, skips_certain: bool, max_draft: int) -> None:
        self._drafters = drafters
        self._counters = counters
        self._skips_certain = skips_certain
        self.max_draft = max_draft

    def build(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        matcher: Matcher,
        bitmask: torch.Tensor,
        num_left: int,
    ) -> Draft:
        """Return a draft for an output that has room for ``num_left`` tokens; the matcher is left where it was.

        ``bitmask`` is int32 of shape (max_draft + 1, ceil(width / 32)); row i is filled for position i. A row
        without a legal token ends the draft in front of it.
        """
        draft = Draft()
        ids = list(output_ids)
        try:
            self._walk(draft, DraftView(prompt_ids, ids, matcher), ids, bitmask, num_left)
        finally:  # also where a drafter raises
            matcher.rollback(len(draft.tokens))
        if draft.has_next and draft.tokens and not bitmask[len(draft.tokens)].any():
            draft.has_next = False  # a dead end: for the next step to report, if the draft gets there
        return draft

    def _walk(self, draft: Draft, view: DraftView, ids: list[int], bitmask: torch.Tensor, num_left: int) -> None:
        """Move the view's matcher ahead, and write down the way in ``draft`` and in ``ids``, which the view shows."""
        matcher = view.matcher
        words = bitmask.numpy()
        queue: deque[int] = deque()
        while draft.has_next:
            row = len(draft.tokens)
            matcher.fill_bitmask(bitmask, row)
            if row == self.max_draft:
                break
            only = only_token(words[row]) if self._skips_certain else None
            if only is None and not queue:
                queue.extend(self._proposal(view))
            token = only if only is not None else queue.popleft() if queue else None
            if token is None or not matcher.consume(token):
                break
            if only is not None and queue and queue.popleft() != only:
                queue.clear()
            draft.tokens.append(token)
            draft.is_certain.append(only is not None)
            ids.append(token)
            draft.has_next = len(draft.tokens) < num_left and not matcher.is_terminated

    def _proposal(self, view: DraftView) -> Sequence[int]:
        with self._counters.timed("boundary"):
            return next((tokens for drafter in self._drafters if (tokens := drafter.propose(view))), ())


def only_token(words: np.ndarray) -> int | None:
    """Return the token of a mask row (int32, shape (words,)) that has exactly one bit set, else None."""
    used = np.flatnonzero(words)
    if len(used) != 1:
        return None
    word = int(words[used[0]]) & 0xFFFFFFFF
    return None if word & (word - 1) else int(used[0]) * 32 + word.bit_length() - 1
