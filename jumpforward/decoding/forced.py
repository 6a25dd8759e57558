"""Drafts of what the grammar forces."""

from __future__ import annotations

from jumpforward.decoding.boundary import Boundary
from jumpforward.decoding.drafter import Bid, Drafter, DraftView

FORCED = "forced"

_CONFIDENCE = 0.9  # some models write forced text in other tokens than the tokenizer does


class ForcedText(Drafter):
    """Drafts the canonical tokens of the bytes that the grammar forces."""

    name = FORCED

    def __init__(self, boundary: Boundary) -> None:
        self._boundary = boundary

    def propose(self, view: DraftView) -> Bid | None:
        """Bid the canonical tokens of the forced bytes, the withheld tail included."""
        forced = view.matcher.forced_bytes()
        return Bid(self._boundary.tokens(view.output_ids, forced), _CONFIDENCE) if forced else None
