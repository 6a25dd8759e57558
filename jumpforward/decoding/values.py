"""Drafts of how a value begins: with the next name or number of the prompt.

In front of a value nothing of it is known yet that could be looked up. But fields are often filled in the order of the
text that they are taken from, and most of what is copied is a name or a number. A word is bid once: where the
model began with another one, it is let go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from jumpforward.decoding.boundary import Boundary
from jumpforward.decoding.drafter import Bid, Drafter, DraftRequest, DraftView

_VALUE_START = re.compile(rb'[:\[,] ?"?\Z')
_WORD = re.compile(r"\d+(?:[.:/-]\d+)*|\w+")
_MAX_TRIED = 3  # words that are spelled to find one that is legal
_NUMBER, _NAME = 0.45, 0.3
_IN_LIST = 0.2  # behind a comma, where as often as not a key stands


class CopiedValues(Drafter):
    """Drafts the first word of a value: a name or a number of the prompt that the output does not have yet."""

    name = "values"

    def __init__(self, boundary: Boundary) -> None:
        self._boundary = boundary

    def start(self, request: DraftRequest) -> Drafter:
        """Return the source of one request."""
        return _PromptValues(self._boundary, request.prompt_bytes)


class _PromptValues(CopiedValues):
    def __init__(self, boundary: Boundary, prompt: bytes) -> None:
        super().__init__(boundary)
        found = (match[0] for match in _WORD.finditer(prompt.decode("utf-8", "ignore")))
        words = dict.fromkeys(word.encode() for word in found if word[0].isdigit() or word[0].isupper())
        self._words = {word: place for place, word in enumerate(words)}
        self._next = 0  # the place behind the word that a value began with last
        self._bids: dict[int, bytes] = {}  # by the length of the text in front of it
        self._refused: set[bytes] = set()

    def propose(self, view: DraftView) -> Bid | None:
        text = view.output_bytes
        start = _VALUE_START.search(text, max(0, len(text) - 3))
        if start is None:
            return None
        self._judge(text)
        is_string = text.endswith(b'"')
        confidence = _IN_LIST if start[0].startswith(b",") else _NAME if is_string else _NUMBER
        for _, word in zip(range(_MAX_TRIED), self._candidates(text, is_string), strict=False):
            tokens = self._boundary.spell(view.output_ids, word).ids
            if tokens and view.allows(tokens[0]):
                self._bids[len(text)] = word
                return Bid(tokens, confidence)
        return None

    def _candidates(self, text: bytearray, is_string: bool) -> Iterator[bytes]:
        """Yield the words that are left: those behind the last value's first, for a number only numbers."""
        words = list(self._words)
        for word in (*words[self._next :], *words[: self._next]):
            if word not in self._refused and (is_string or word[:1].isdigit()) and word not in text:
                yield word

    def _judge(self, text: bytearray) -> None:
        """See what became of the words that were bid, where the text has gone on."""
        for place, word in list(self._bids.items()):
            if len(text) < place + len(word):
                continue
            del self._bids[place]
            if text.startswith(word, place):
                self._next = self._words[word] + 1
            else:
                self._refused.add(word)
