"""Drafts of values that are copied from the prompt.

``"Dan`` and `` Dan`` are different tokens, so that a copied value is found by its bytes: the end of the output, from
the beginning of a word on, is looked up in the prompt's text, and what follows there is bid in the tokenizer's own
tokens; in other letter case, if that does not stand there. Where a clause of the prompt ends behind the word, the value
as a rule does too: there the token is bid that ended the last value. Where the grammar wants a number, the prompt's
next one is bid.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jumpforward.decoding.boundary import Boundary
from jumpforward.decoding.drafter import Bid, Drafter, DraftRequest, DraftView, Outcome
from jumpforward.vocab.vocabulary import Vocabulary

_MAX_KNOWN = 48  # bytes of the output that are looked up
_WORD = re.compile(rb"[0-9A-Za-z\x80-\xff]+")
_WORD_START = re.compile(rb"(?<![0-9A-Za-z\x80-\xff])[0-9A-Za-z\x80-\xff]")
_NUMBER = re.compile(rb"(?<![0-9A-Za-z.\-])[0-9]+(?:\.[0-9]+)?(?![0-9\-])")  # no part of a date or a code
_NEXT_WORD = re.compile(rb"[^0-9A-Za-z\x80-\xff]{1,2}[0-9A-Za-z\x80-\xff]+")

# How likely a copy goes on: inside a word, to the next word, over a sign as in an address, over the end of a clause.
# A word is known by the bytes of it that the output has: one, two, or more.
_IN_WORD = (0.8, 0.93, 0.97)
_NEXT, _JOINED, _OVER_CLAUSE = 0.6, 0.9, 0.1
# And how likely the value ends: where the prompt's clause does, and behind a word that the prompt does not have.
_END_OF_CLAUSE, _END_OF_WORD = 0.45, 0.24
_NEXT_NUMBER = 0.5


class CopiedText(Drafter):
    """Drafts the rest of a word of the prompt that the output has begun, and then the words behind it."""

    name = "lookup"

    def __init__(self, boundary: Boundary) -> None:
        self._boundary = boundary

    def start(self, request: DraftRequest) -> Drafter:
        """Return the source of one request."""
        return _PromptText(self._boundary, request)


class _PromptText(CopiedText):
    def __init__(self, boundary: Boundary, request: DraftRequest) -> None:
        super().__init__(boundary)
        # A sign in front, so that every word has one.
        self._text = b" " + request.prompt_bytes
        self._lower_text = self._text.lower()
        self._digit, self._letter = (boundary.tokens((), text)[:1] for text in (b"1", b"a"))
        self._ends = _ValueEnds(request.vocabulary, boundary.tokens((), b'",')[:1])
        self._last_end = 0  # where the last copy came to: values are often copied in the prompt's order

    def propose(self, view: DraftView) -> Bid | None:
        if not _WORD.match(view.output_bytes, max(0, len(view.output_bytes) - 1)):
            return self._number(view)
        found = self._find(bytes(view.output_bytes[-_MAX_KNOWN:]))
        if found is None:
            return self._ends.bid(view, _END_OF_WORD)
        self._last_end, known = found
        data, confidence = self._next(self._last_end, len(known))
        if confidence < _NEXT and (bid := self._ends.bid(view, _END_OF_CLAUSE)) is not None:
            return bid
        is_recased = not self._text.endswith(known, 0, self._last_end)
        return self._bid(view, _cased(data, known) if is_recased else data, confidence, "recased" if is_recased else "")

    def _bid(self, view: DraftView, data: bytes, confidence: float, kind: str) -> Bid | None:
        tokens = self._boundary.tokens(view.output_ids, data) if data else ()
        return Bid(tokens, confidence, kind) if tokens else None

    def learn(self, outcome: Outcome) -> None:
        self._ends.learn(outcome)

    def _find(self, known: bytes) -> tuple[int, bytes] | None:
        """Return where in the prompt the longest end of the output ends that begins with a word, and that end."""
        starts = [match.start() for match in _WORD_START.finditer(known)]
        lower = known.lower()
        if not starts or lower[starts[-1] :] not in self._lower_text:  # most often: this word is no copy
            return None
        for text, end in ((self._text, known), (self._lower_text, lower)):
            for start in starts:
                wanted = end[start:]
                place = _first_place(text, wanted, self._last_end - len(wanted)) or _last_place(text, wanted)
                if place:
                    return place + len(wanted), known[start:]
        return None

    def _number(self, view: DraftView) -> Bid | None:
        """Bid the next number, where a number is to come: a digit is legal, and a letter is not."""
        if (
            view.output_bytes[-1:] == b"."
            or not any(map(view.allows, self._digit))
            or any(map(view.allows, self._letter))
        ):
            return None
        match = _NUMBER.search(self._text, self._last_end) or _NUMBER.search(self._text)
        return self._bid(view, match[0], _NEXT_NUMBER, "number") if match else None

    def _next(self, end: int, len_known: int) -> tuple[bytes, float]:
        """Return the text up to the end of a word, and how likely it is copied too."""
        if match := _WORD.match(self._text, end):
            return match[0], _IN_WORD[min(len_known, len(_IN_WORD)) - 1]
        match = _NEXT_WORD.match(self._text, end)
        if match is None:
            return b"", 0.0
        if match[0][:1] == b" ":
            return match[0], _NEXT
        if b" " in match[0] or b"\n" in match[0]:
            return match[0], _OVER_CLAUSE
        return match[0], _JOINED


def _cased(data: bytes, known: bytes) -> bytes:
    """Return text of the prompt in the case of what stands in front of it: inside a word, or in front of the next."""
    if _WORD.match(data):
        return data.lower() if known[-1:].islower() else data
    return data.title() if known[:1].isupper() else data.lower()


def _first_place(text: bytes, wanted: bytes, start: int) -> int:
    """Return the first place from ``start`` on at which ``wanted`` stands with no word running into it; 0 for none."""
    at = text.find(wanted, max(1, start))
    while at > 0 and _WORD.match(text, at - 1, at):
        at = text.find(wanted, at + 1)
    return max(0, at)


def _last_place(text: bytes, wanted: bytes) -> int:
    """Return the last such place: what is to be done stands at the end of a prompt as a rule."""
    at = text.rfind(wanted, 1)
    while at > 0 and _WORD.match(text, at - 1, at):
        at = text.rfind(wanted, 1, at + len(wanted) - 1)
    return max(0, at)


class _ValueEnds:
    """The tokens that ended the last string and the last number of an output in JSON."""

    def __init__(self, vocabulary: Vocabulary, usual: Sequence[int]) -> None:
        self._token_bytes = vocabulary.token_bytes
        self._tokens = {b'"': usual[0]} if usual else {}  # by the first byte: a string's, a number's

    def bid(self, view: DraftView, confidence: float) -> Bid | None:
        """Return the first of them that is legal."""
        token = next((token for token in self._tokens.values() if view.allows(token)), None)
        return None if token is None else Bid((token,), confidence)

    def learn(self, outcome: Outcome) -> None:
        """Note how values ended in the tokens of a pass."""
        ids, before = outcome.output_ids, max(0, outcome.num_before - 1)
        for index in range(before + 1, len(ids)):
            data = self._token_bytes[ids[index]]
            first = data[:1]
            if (
                first in (b'"', b",", b"}")
                and b":" not in data
                and _WORD.search(self._token_bytes[ids[index - 1]][-1:])
            ):
                self._tokens[b'"' if first == b'"' else b","] = ids[index]
