"""Forced bytes to tokens: which to write, which of them stay whatever follows, and what they change before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.canonical import Seam, find_seams
from jumpforward.vocab.encoder import PlainEncoder, len_whole_characters
from jumpforward.vocab.vocabulary import ANY_BYTE

_MAX_WINDOW = 64  # tokens to the left that are looked through for a place where tokens fall apart
_UNSURE_WINDOW = 4  # tokens to the left that are encoded along where no such place is known; good enough for a guess
_CACHED_SEAMS = 8192  # the same seams come back with every document of a schema

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Spelling:
    """Forced bytes as tokens.

    Attributes:
        ids: the canonical tokens of the forced bytes that are whole characters.
        num_stable: how many of them no legal continuation can change.
        is_understood: whether enough is known of the tokenizer to say so of more than none.
    """

    ids: Tokens
    num_stable: int
    is_understood: bool = True

    @property
    def stable(self) -> Tokens:
        """The tokens that no legal continuation can change."""
        return self.ids[: self.num_stable]

    @property
    def num_withheld(self) -> int:
        """How many of the tokens a legal continuation could change."""
        return len(self.ids) - self.num_stable


class Rewrite(NamedTuple):
    """The end of an output in other tokens: the first ``num_kept`` tokens stay, ``ids`` take the place of the rest.

    Whatever is written behind, the first ``num_final`` tokens will stay too.
    """

    num_kept: int
    ids: Tokens
    num_final: int


class Boundary:
    """Spells forced bytes in their left context. Remembers seams; otherwise without state."""

    def __init__(self, encoder: PlainEncoder, borders: StableBorders) -> None:
        self._encoder = encoder
        self._borders = borders
        self._text_bytes = encoder.vocabulary.text_bytes
        self._ids = lru_cache(maxsize=_CACHED_SEAMS)(self._ids_uncached)

    @property
    def not_understood(self) -> str | None:
        """What of the tokenizer is not understood, so that nothing is stable; None where all is."""
        return self._borders.reason

    def tokens(self, left: Sequence[int], forced: bytes) -> Tokens:
        """Return the tokens of ``forced`` behind the output tokens ``left`` as :meth:`spell` gives them.

        Which of them are stable is not asked: for drafts it does not matter.
        """
        return self._behind(left, forced)[1]

    def spell(self, left: Sequence[int], forced: bytes, live_bytes: Callable[[bytes], bytes] | None = None) -> Spelling:
        """Return the tokens of ``forced`` behind the output tokens ``left``, which stay as they are.

        Where the tokens of left and forced text together are not ``left`` and then others, the forced text is spelled
        as if it stood alone. No tokens where it begins inside a character or does not round-trip.

        Args:
            left: the output so far.
            forced: what must follow it.
            live_bytes: says with which bytes text can go on behind ``left`` and what may follow it, as the matcher that
                stands there does; without it any text can follow ``forced``, and fewer tokens are stable.
        """
        context, ids, is_all = self._behind(left, forced)
        if not is_all or self._borders.reason is not None:
            return Spelling(ids, 0, is_understood=False)
        known, whole = context + ids, forced[: len_whole_characters(forced)]
        if live_bytes is None:
            num_stable = self._borders.num_stable(known, forced[len(whole) :][:1] or ANY_BYTE)
        else:
            num_stable = self._borders.num_stable(known, live_bytes(whole), lambda more: live_bytes(whole + more))
        return Spelling(ids, max(0, num_stable - len(context)))

    def rewrite(self, output: Sequence[int], num_canonical: int, forced: bytes) -> Rewrite | None:
        """Return ``output`` with ``forced`` behind it in canonical tokens; None where the tokenizer has none for it.

        Args:
            output: the tokens so far.
            num_canonical: how many of them are the beginning of a canonical sequence; only what lies behind the last
                place in it at which tokens fall apart is encoded.
            forced: what must follow.
        """
        following = self._text_bytes(output[num_canonical:]) + forced
        # In front of a place tokens stay if the text behind it was there when they were made.
        num_left = self._num_left(output[:num_canonical], following, least=1)
        start = 0 if num_left is None else num_canonical - num_left
        whole = self._whole(output[start:], forced)
        if start and not self._borders.is_known(whole.decode(errors="replace")):
            start, whole = 0, self._whole(output, forced)
        old = output[start:]
        ids = self._encoder.encode(whole)
        if ids is None:
            return None
        num_same = next(
            (index for index, (was, now) in enumerate(zip(old, ids, strict=False)) if was != now),
            min(len(old), len(ids)),
        )
        return Rewrite(start + num_same, ids[num_same:], start)

    def _behind(self, left: Sequence[int], forced: bytes) -> tuple[Tokens, Tokens, bool]:
        """Return the context that forced text is encoded in, its tokens, and whether that is all that matters."""
        num_left = self._num_left(left, forced)
        window = tuple(left[max(0, len(left) - (_UNSURE_WINDOW if num_left is None else num_left)) :])
        return *self._ids(window, forced[: len_whole_characters(forced)]), num_left is not None

    def _whole(self, old: Sequence[int], forced: bytes) -> bytes:
        """Return the text of tokens and what follows them, up to its last whole character."""
        return self._text_bytes(old) + forced[: len_whole_characters(forced)]

    def num_open(self, text_ids: Sequence[int], next_bytes: bytes) -> int:
        """Return how many of the last tokens of a text would be others in front of text that begins with some byte.

        0 where that is not known, or the tokens are not the text's canonical ones.
        """
        for count in range(1, min(len(text_ids), _MAX_WINDOW) + 1):
            before, window = text_ids[: len(text_ids) - count], tuple(text_ids[len(text_ids) - count :])
            if not before or self._fall_apart(self._text_bytes(before[-4:]), self._text_bytes(window)):
                is_canonical = self._encoder.encode(self._text_bytes(window)) == window
                return count - self._borders.num_stable(window, next_bytes) if is_canonical else 0
        return 0

    def find_seams(self, ids: Sequence[int]) -> list[Seam] | None:
        """Return where an output is not canonical; None where its text has no canonical tokens."""
        return find_seams(self._encoder, ids)

    def _num_left(self, left: Sequence[int], following: bytes, least: int = 0) -> int | None:
        """Return how many tokens of ``left`` have a part in those of the bytes behind; None where that is not known.

        At least ``least``, if there are so many.
        """
        behind = following[:4]
        for count in range(min(len(left), _MAX_WINDOW) + 1):
            if count == len(left):
                return count
            before = self._text_bytes(left[max(0, len(left) - count - 4) : len(left) - count])
            if count >= least and self._fall_apart(before, behind):
                return count
            behind = (self._text_bytes(left[len(left) - count - 1 : len(left) - count]) + behind)[:4]
        return None

    def _fall_apart(self, before: bytes, behind: bytes) -> bool:
        """Whether tokens always fall apart between two texts, of which the last and the first four bytes matter."""
        if not behind or behind[0] & 0xC0 == 0x80:  # inside a character
            return False
        last, first = before[-4:].decode(errors="ignore")[-1:], behind.decode(errors="ignore")[:1]
        return bool(last and first) and self._borders.are_independent(last, first)

    def _ids_uncached(self, window: Tokens, whole: bytes) -> tuple[Tokens, Tokens]:
        """Return the context and the tokens of whole characters behind it: the window, or nothing."""
        for context in dict.fromkeys((window, ())):
            if whole and (ids := self._encoder.encode(whole, context)) is not None:
                return context, ids
        return (), ()
