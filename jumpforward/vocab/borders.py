"""Which tokens of a known text stay whatever text follows.

The rule. Take any text behind the known one, and the tokens of both together. One of their borders is the last that
lies within the known text (its end counts). The tokens before that border are the tokens of the text before it: merges
of BPE that do not cross a border are made as if it were the end, and a unigram model's best way to a place does not
depend on what comes behind. The token that begins at the last border is in the vocabulary, begins with the rest of the
known text, and goes on with a byte that may follow. So the places at which such a token could begin are all that needs
to be looked at, and what their tokens have in common stays. Where a pre-tokenizer cuts the text into pieces the same
holds inside the piece that is still open, for each way in which the text can still be cut.

That is exact for a border as such: a look-back by a number of tokens is sometimes too short, mostly too long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jumpforward.vocab.agreeing import common_beginning
from jumpforward.vocab.cutting import Cutting
from jumpforward.vocab.encoder import len_whole_characters
from jumpforward.vocab.pattern_parser import UnknownRuleError
from jumpforward.vocab.piece_model import PieceModel
from jumpforward.vocab.rewriting import Rewriting, space_letter
from jumpforward.vocab.split_rule import ANYTHING, END, Ahead, Cuts, TooManyWaysError
from jumpforward.vocab.vocabulary import ANY_BYTE, Vocabulary, backend_spec, components

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tokens = tuple[int, ...]

_CACHED_PAIRS = 1 << 16
_MAX_CONTINUATIONS = 32


class Stable(NamedTuple):
    """How many tokens of a text stay.

    Attributes:
        at_most: how many at most.
        doubts: how many stay if one of these texts can follow, for numbers below that, in ascending order.
    """

    at_most: int
    doubts: tuple[tuple[int, tuple[bytes, ...]], ...] = ()

    def number(self, permits: Callable[[bytes], bool] | None = None) -> int:
        """Return how many stay, given what says whether a text can follow; without it any can."""
        legal = (number for number, texts in self.doubts if permits is None or any(map(permits, texts)))
        return next(legal, self.at_most)


class _Spelling(NamedTuple):
    """Tokens of the beginning of a text; and the texts of which one must follow it for that, if some must."""

    ids: Tokens
    if_behind: tuple[bytes, ...] = ()


class StableBorders:
    """The borders of one tokenizer that stay, and those at which its tokens fall apart into left and right.

    Attributes:
        reason: what of the tokenizer is not understood, so that nothing counts as stable; None where all is.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.reason: str | None = None
        spec = backend_spec(tokenizer)
        try:
            normalizer = components(spec["normalizer"])
            self._rewriting = Rewriting(normalizer, spec["added_tokens"])
            self._cutting = Cutting(components(spec["pre_tokenizer"]), space_letter(normalizer))
            self._model = PieceModel(spec, tokenizer.backend_tokenizer)
        except UnknownRuleError as error:
            self.reason = str(error)
        self.are_independent = lru_cache(maxsize=_CACHED_PAIRS)(self._are_independent)

    def num_stable(self, ids: Sequence[int], next_bytes: bytes = ANY_BYTE) -> int:
        """Return how many of the canonical tokens ``ids`` of a text stay, whatever comes behind it.

        ``next_bytes`` are those with which text behind it can begin; it may also end.
        """
        return self.stable(ids, next_bytes).number()

    def stable(self, ids: Sequence[int], next_bytes: bytes) -> Stable:
        """Return the same as far as it can be said without knowing more of what may come than its first byte."""
        data = self._vocabulary.text_bytes(ids)
        if self.reason is not None or not data or len_whole_characters(data) < len(data):
            return Stable(0)
        text = data.decode()
        (way,) = self._cutting.cuts(text, END)
        known = self._spellings(text, way, ANY_BYTE)[0].ids
        if known != tuple(ids[: len(known)]) or self._rewriting.takes_out(text):
            return Stable(0)
        settled, next_settled = self._rewriting.settled(text, next_bytes)
        found = self._stable_settled(known, settled, next_settled)
        # Where text is left out or rewritten, what the tokens go on with is not what comes behind it.
        return found if (settled, next_settled) == (text, next_bytes) else Stable(found.number())

    def _stable_settled(self, ids: Tokens, text: str, next_bytes: bytes) -> Stable:
        """Return what stays of the tokens of a text, or of those of a beginning that is cut in fewer ways."""
        try:
            return self._stable_of(ids, text, next_bytes)
        except TooManyWaysError as error:
            text, next_bytes = text[: error.place], text[error.place :].encode()[:1]
            return Stable(self._stable_settled(ids, text, next_bytes).number() if text else 0)

    def _stable_of(self, ids: Tokens, text: str, next_bytes: bytes) -> Stable:
        ways = {way: None for ahead in self._aheads(next_bytes) for way in self._cutting.cuts(text, ahead)}
        number, doubts = len(ids), []
        for each in (spelling for way in ways for spelling in self._spellings(text, way, next_bytes)):
            num_common = len(common_beginning([ids, each.ids]))
            if each.if_behind:
                doubts.append((num_common, each.if_behind))
            else:
                number = min(number, num_common)
        return Stable(number, tuple(sorted(doubt for doubt in doubts if doubt[0] < number)))

    def _aheads(self, next_bytes: bytes) -> Iterator[Ahead]:
        """Give the next characters, one of each sort that the pre-tokenizer tells apart, and the end."""
        yield END
        if not next_bytes.isascii():
            yield ANYTHING
            return
        chars = map(chr, next_bytes)
        yield from (Ahead(char) for char in {self._cutting.signatures(char): char for char in chars}.values())

    def _spellings(self, text: str, way: Cuts, next_bytes: bytes) -> list[_Spelling]:
        """Return the tokens in front of each place where the last border within a text could be, if it is cut so."""
        data = text.encode()
        places = [len(text[:place].encode()) for place in way]
        before: Tokens = ()
        for start, end in pairwise(places):
            ids, is_all = self._model.whole(data[start:end])
            before += ids
            if not is_all:
                return [_Spelling(before)]
        rest = data[places[-1] :]
        found = [_Spelling(before + self._model.beginning(rest)[0])]
        for place in range(max(0, len(rest) - self._longest + 1), len(rest)):
            more = self._continuations(rest[place:], next_bytes)
            if more is not None:
                found.append(_Spelling(before + self._model.beginning(rest[:place])[0], more))
        return found

    def _continuations(self, beginning: bytes, next_bytes: bytes) -> tuple[bytes, ...] | None:
        """Return with what the tokens go on that begin so and then have one of these bytes.

        None where there are no such tokens; nothing where one byte is enough, or there are many to be asked about.
        """
        pieces, length = self._sorted, len(beginning)
        found: list[bytes] = []
        place = bisect_right(pieces, beginning)
        while place < len(pieces) and pieces[place].startswith(beginning):
            value = pieces[place][length]
            if value not in next_bytes:
                place = bisect_left(pieces, beginning + bytes([value + 1])) if value < 255 else len(pieces)
                continue
            found.append(pieces[place][length:])
            if len(found[-1]) == 1 or len(found) > _MAX_CONTINUATIONS:
                return ()
            place += 1
        return tuple(found) or None

    @cached_property
    def _sorted(self) -> list[bytes]:
        return sorted({token for token in self._vocabulary.token_bytes if token})

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._sorted))

    def _are_independent(self, left: str, right: str) -> bool:
        """Whether the tokens of any text fall apart between these two characters next to each other.

        What is left of such a place has no part in the tokens right of it, and no token lies across it: the
        pre-tokenizer always cuts there, or no token contains the bytes at the border side by side, and pieces are not
        taken whole.
        """
        if self.reason is not None or self._rewriting.may_cross(left, right) or self._cutting.joins(left, right):
            return False
        if self._cutting.parts(left, right):
            return True
        return not self._model.takes_whole and not self._side_by_side[left.encode()[-1], right.encode()[0]]

    def is_known(self, text: str) -> bool:
        """Whether the tokens of a text that stands behind such a place are sure to be those of the text alone."""
        return self.reason is None and self._model.is_known(text)

    @cached_property
    def _side_by_side(self) -> np.ndarray:
        """For all pairs of bytes, whether some token contains them next to each other, (first byte, second byte)."""
        data = np.frombuffer(b"".join(self._vocabulary.token_bytes), dtype=np.uint8)
        lengths = [len(token) for token in self._vocabulary.token_bytes if token]
        inside = np.ones(len(data), dtype=bool)
        inside[np.fromiter(accumulate(lengths), dtype=np.int64) - 1] = False  # a last byte has no right neighbour
        pairs = np.zeros((256, 256), dtype=bool)
        first = np.flatnonzero(inside)
        pairs[data[first], data[first + 1]] = True
        return pairs
