"""Forced bytes to tokens: which to write, and which of them stay whatever follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.encoder import PlainEncoder

# How many tokens to the left are encoded along, tried in this order. Behind a token that is not canonical no
# context fits, and forced text is spelled as if it stood alone.
_LEFT_TOKENS = (4, 1, 0)
_CACHED_SEAMS = 8192  # the same seams come back with every document of a schema


@dataclass(frozen=True)
class Spelling:
    """Forced bytes as tokens.

    Attributes:
        ids: the canonical tokens of the forced bytes that are whole characters.
        num_stable: how many of them no legal continuation can change.
    """

    ids: tuple[int, ...]
    num_stable: int

    @property
    def stable(self) -> tuple[int, ...]:
        """The tokens that no legal continuation can change."""
        return self.ids[: self.num_stable]


class Boundary:
    """Spells forced bytes in their left context. Remembers seams; otherwise without state."""

    def __init__(self, encoder: PlainEncoder, borders: StableBorders) -> None:
        self._encoder = encoder
        self._borders = borders
        self._spell = lru_cache(maxsize=_CACHED_SEAMS)(self._spell_uncached)

    def spell(self, left: Sequence[int], forced: bytes) -> Spelling:
        """Return the tokens of ``forced`` behind the output tokens ``left``, which stay as they are.

        Where the tokens of left and forced text together are not ``left`` and then others, the forced text is
        spelled as if it stood alone. No tokens where it begins inside a character or does not round-trip.
        """
        return self._spell(tuple(left[-max(_LEFT_TOKENS) :]), forced)

    def _spell_uncached(self, left: tuple[int, ...], forced: bytes) -> Spelling:
        whole = forced[: _len_whole_characters(forced)]
        if not whole:
            return Spelling((), 0)
        for num_left in _LEFT_TOKENS:
            context = left[len(left) - num_left :] if num_left <= len(left) else left
            ids = self._encoder.encode(whole, context)
            if ids is not None:
                return Spelling(ids, self._borders.num_stable(ids) if self._encoder.round_trips else 0)
        return Spelling((), 0)


def _len_whole_characters(data: bytes) -> int:
    """Return the length of ``data`` without the lead bytes of an unfinished last character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # a lead byte; it announces 2, 3 or 4 bytes
            announced = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) if back == announced else len(data) - back
        if byte < 0x80:
            break
    return len(data)
