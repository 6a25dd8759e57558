"""Plain-text encoding: the tokenizer's own tokens for a text in the middle of an output."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import tokenizers

from jumpforward.errors import TokenizerError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from jumpforward.vocab.vocabulary import Vocabulary

# Tokenizers that put a space before a text put it before one of these; what follows is then mid-text. A text needs one
# of them with which its beginning forms no token.
_ANCHORS = ("\n", "a", "0")

PLAIN_TEXTS = ("a", "The answer is 42.", '{"name": "Ann", "tags": ["x", "y"]}', "if (a < b) { return a; }\n")
NASTY_TEXTS = (
    "  two  spaces   three ", "\ttab\r\n\n\nlines\n ", "é ü ñ", "e\u0301 o\u0308", "在线 霍格沃茨",
    "😀🙏🏽👩‍👩‍👧",
    "1234567 3.14159 0x1F", "don't we'll I'd 're", "x?!...,,,;;;", '"\\u0001\\"q\\\\"', "a ,b . c !",
    "\u00a0nbsp\u2028sep", "\x00\x01\x7f", "</s><|im_end|><s>[INST]<0x0A>", "ﬁ ① Ａ",
)  # fmt: skip


class PlainEncoder:
    """Encodes text as plain text: no special token is ever made of it, and no space is put before it.

    Attributes:
        vocabulary: the vocabulary that the ids belong to.
        lossy_texts: texts of the self-test whose tokens do not spell the text again. A tokenizer that
            normalizes has some; encodings are therefore checked one by one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> None:
        """Copy the tokenizer's backend, and test it.

        Raises:
            TokenizerError: the tokens of simple English text do not spell it.
        """
        self.vocabulary = vocabulary
        # A copy: `encode_special_tokens` must not change the user's tokenizer.
        self._backend = tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.encode_special_tokens = True
        self._backend.no_truncation()
        self._backend.no_padding()
        self._anchors = ("",) if self._spells("a", self._raw("a")) else _ANCHORS
        failed = self._not_spelled(PLAIN_TEXTS)
        if failed:
            raise TokenizerError(
                f"the tokens of {failed[0]!r} do not spell it: {type(tokenizer).__name__} changes text in a "
                "way that is not supported"
            )
        self.lossy_texts = self._not_spelled(NASTY_TEXTS)

    @property
    def round_trips(self) -> bool:
        """Whether the self-test's tokens spell every text of it again."""
        return not self.lossy_texts

    def encode(self, data: bytes, left: Sequence[int] = ()) -> tuple[int, ...] | None:
        """Return the canonical tokens of ``data`` behind the tokens ``left``.

        None where there are none: the bytes are not whole characters, the tokenizer changes them, or
        the canonical tokens of left and data together are not ``left`` and then others.
        """
        prefix = self.vocabulary.text_bytes(left)
        try:
            text = (prefix + data).decode()
        except UnicodeDecodeError:
            return None
        for anchor in self._anchors:
            ids = self._raw(anchor + text)
            seam = self._cut(ids, len(prefix + data)) if anchor else 0
            if seam is not None and self.vocabulary.text_bytes(ids[seam:]) == prefix + data:
                kept = seam + len(left)
                return tuple(ids[kept:]) if tuple(ids[seam:kept]) == tuple(left) else None
        return None

    def _not_spelled(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Return the texts that do not survive encoding, of those whose bytes the vocabulary has."""
        spellable = self.vocabulary.spellable_bytes
        return tuple(
            text for text in texts if spellable.issuperset(text.encode()) and self.encode(text.encode()) is None
        )

    def _raw(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids

    def _spells(self, text: str, ids: Sequence[int]) -> bool:
        return self.vocabulary.text_bytes(ids) == text.encode()

    def _cut(self, ids: Sequence[int], len_bytes: int) -> int | None:
        """Return the index behind the anchor's tokens: all but the last ``len_bytes`` bytes."""
        lengths = [0, *accumulate(len(self.vocabulary.token_bytes[index]) for index in ids)]
        start = lengths[-1] - len_bytes
        return lengths.index(start) if start in lengths else None


def len_whole_characters(data: bytes) -> int:
    """Return the length of ``data`` without the lead bytes of an unfinished last character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # a lead byte; it announces 2, 3 or 4 bytes
            announced = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) if back == announced else len(data) - back
        if byte < 0x80:
            break
    return len(data)
