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
_CACHED_TEXTS = 8192  # the same come back with every document of a schema
_MAX_STEPS = 16


class Stable(NamedTuple):
    """How many tokens of a text stay.

    Attributes:
        at_most: how many at most.
        doubts: how many stay if a token that begins so, and goes on behind the text, can come; in ascending order.
    """

    at_most: int
    doubts: tuple[tuple[int, bytes], ...] = ()


class _Spelling(NamedTuple):
    """Tokens of the beginning of a text; and how a token begins that must come behind them for that, if one must."""

    ids: Tokens
    if_spanned: bytes = b""


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
        self._stable = lru_cache(maxsize=_CACHED_TEXTS)(self._stable_uncached)
        self.are_independent = lru_cache(maxsize=_CACHED_PAIRS)(self._are_independent)

    def num_stable(
        self, ids: Sequence[int], next_bytes: bytes = ANY_BYTE, live_bytes: Callable[[bytes], bytes] | None = None
    ) -> int:
        """Return how many of the canonical tokens ``ids`` of a text stay, whatever comes behind it.

        Args:
            ids: the tokens.
            next_bytes: those with which text behind them can begin; it may also end.
            live_bytes: says with which bytes such text can go on behind some of it; without it, with any.
        """
        found = self._stable(tuple(ids), next_bytes)
        if live_bytes is None:
            return _at_least(found).at_most
        spanned = (number for number, begun in found.doubts if self._can_come(begun, next_bytes, live_bytes))
        return next(spanned, found.at_most)

    def forget(self) -> None:
        """Let go of what was found about texts; for measuring."""
        self._stable.cache_clear()

    def _can_come(self, begun: bytes, next_bytes: bytes, live_bytes: Callable[[bytes], bytes]) -> bool:
        """Whether a token that begins so can go on as a text can; true too where that takes long to find out."""
        waiting = [bytes([value]) for value in self._next_values(begun, next_bytes)[0]]
        for _ in range(_MAX_STEPS):
            if not waiting:
                return False
            more = waiting.pop()
            values, is_token = self._next_values(begun + more, live_bytes(more))
            if is_token:
                return True
            waiting += [more + bytes([value]) for value in values]
        return True

    def _stable_uncached(self, ids: Tokens, next_bytes: bytes) -> Stable:
        """Return how many tokens stay, as far as it can be said by the first byte of what may come."""
        data = self._vocabulary.text_bytes(ids)
        if self.reason is not None or not data or len_whole_characters(data) < len(data):
            return Stable(0)
        text = data.decode()
        (way,) = self._cutting.cuts(text, END)
        known = self._spellings(text, way, ANY_BYTE)[0].ids
        if known != ids[: len(known)] or self._rewriting.takes_out(text):
            return Stable(0)
        settled, next_settled = self._rewriting.settled(text, next_bytes)
        found = self._stable_settled(known, settled, next_settled)
        # Where text is left out or rewritten, what the tokens go on with is not what comes behind it.
        return found if (settled, next_settled) == (text, next_bytes) else _at_least(found)

    def _stable_settled(self, ids: Tokens, text: str, next_bytes: bytes) -> Stable:
        """Return what stays of the tokens of a text, or of those of a beginning that is cut in fewer ways."""
        try:
            return self._stable_of(ids, text, next_bytes)
        except TooManyWaysError as error:
            text, next_bytes = text[: error.place], text[error.place :].encode()[:1]
            return _at_least(self._stable_settled(ids, text, next_bytes)) if text else Stable(0)

    def _stable_of(self, ids: Tokens, text: str, next_bytes: bytes) -> Stable:
        ways = {way: None for ahead in self._aheads(next_bytes) for way in self._cutting.cuts(text, ahead)}
        number, doubts = len(ids), []
        for each in (spelling for way in ways for spelling in self._spellings(text, way, next_bytes)):
            num_common = len(common_beginning([ids, each.ids]))
            if each.if_spanned:
                doubts.append((num_common, each.if_spanned))
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
            values, is_token = self._next_values(rest[place:], next_bytes)
            if values or is_token:
                ids, _ = self._model.beginning(rest[:place])
                found.append(_Spelling(before + ids, b"" if is_token else rest[place:]))
        return found

    def _next_values(self, begun: bytes, next_bytes: bytes) -> tuple[list[int], bool]:
        """Return with which of these bytes tokens go on that begin so, and whether such a byte completes one."""
        pieces, length = self._sorted, len(begun)
        values: list[int] = []
        place = bisect_right(pieces, begun)
        while place < len(pieces) and pieces[place].startswith(begun):
            value = pieces[place][length]
            if value in next_bytes:
                values.append(value)
                if len(pieces[place]) == length + 1:
                    return values, True
            place = bisect_left(pieces, begun + bytes([value + 1])) if value < 255 else len(pieces)
        return values, False

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


def _at_least(found: Stable) -> Stable:
    """Return what stays if every token that is in doubt can come."""
    return Stable(min([number for number, _ in found.doubts[:1]], default=found.at_most))
