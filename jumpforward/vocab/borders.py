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
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from jumpforward.vocab.cutting import Cutting
from jumpforward.vocab.pattern_parser import UnknownRuleError
from jumpforward.vocab.piece_model import PieceModel
from jumpforward.vocab.rewriting import Rewriting
from jumpforward.vocab.split_rule import ANYTHING, END, Ahead, Cuts
from jumpforward.vocab.vocabulary import ANY_BYTE, Vocabulary, backend_spec, components

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tokens = tuple[int, ...]

_CACHED_PAIRS = 1 << 16


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
            self._rewriting = Rewriting(components(spec["normalizer"]), spec["added_tokens"])
            self._cutting = Cutting(components(spec["pre_tokenizer"]))
            self._model = PieceModel(spec, tokenizer.backend_tokenizer)
        except UnknownRuleError as error:
            self.reason = str(error)
        self.are_independent = lru_cache(maxsize=_CACHED_PAIRS)(self._are_independent)

    def num_stable(self, ids: Sequence[int], next_bytes: bytes = ANY_BYTE) -> int:
        """Return how many of the canonical tokens ``ids`` of a text stay, whatever comes behind it.

        ``next_bytes`` are those with which text behind it can begin; it may also end.
        """
        data = self._vocabulary.text_bytes(ids)
        if self.reason is not None or not data:
            return 0
        try:
            text = data.decode()
            (way,) = self._cutting.cuts(text, END)
            if next(self._spellings(text, way, ANY_BYTE)) != tuple(ids):
                return 0  # an added token is in it, or something that is not understood
            return self._num_common(tuple(ids), *self._rewriting.settled(text, next_bytes))
        except (UnicodeDecodeError, UnknownRuleError):  # half a character; a text with too many ways to be cut
            return 0

    def _num_common(self, ids: Tokens, text: str, next_bytes: bytes) -> int:
        ways = {way: None for ahead in self._aheads(next_bytes) for way in self._cutting.cuts(text, ahead)}
        for way in ways:
            for tokens in self._spellings(text, way, next_bytes):
                ids = ids[: _len_common(ids, tokens)]
                if not ids:
                    return 0
        return len(ids)

    def _aheads(self, next_bytes: bytes) -> Iterator[Ahead]:
        """Give the next characters, one of each sort that the pre-tokenizer tells apart, and the end."""
        yield END
        if not next_bytes.isascii():
            yield ANYTHING
            return
        chars = map(chr, next_bytes)
        yield from (Ahead(char) for char in {self._cutting.signatures(char): char for char in chars}.values())

    def _spellings(self, text: str, way: Cuts, next_bytes: bytes) -> Iterator[Tokens]:
        """Give the tokens in front of each place where the last border within a text could be, if it is cut so."""
        data = text.encode()
        places = [len(text[:place].encode()) for place in way]
        before = tuple(token for start, end in pairwise(places) for token in self._model.whole(data[start:end]))
        rest = data[places[-1] :]
        yield before + self._model.beginning(rest)
        for place in range(max(0, len(rest) - self._longest + 1), len(rest)):
            if self._spans(rest[place:], next_bytes):
                yield before + self._model.beginning(rest[:place])

    def _spans(self, beginning: bytes, next_bytes: bytes) -> bool:
        """Whether some token begins so and goes on with one of these bytes."""
        pieces, length = self._sorted, len(beginning)
        place = bisect_right(pieces, beginning)
        while place < len(pieces) and pieces[place].startswith(beginning):
            value = pieces[place][length]
            if value in next_bytes:
                return True
            place = bisect_left(pieces, beginning + bytes([value + 1])) if value < 255 else len(pieces)
        return False

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


def _len_common(left: Tokens, right: Tokens) -> int:
    shorter = min(len(left), len(right))
    return next((index for index in range(shorter) if left[index] != right[index]), shorter)
