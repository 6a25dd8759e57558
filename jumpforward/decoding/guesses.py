"""Drafts of what the model said behind a token that it refused.

When a draft is refused at one place, the rows behind it hold the model's choices for the text that would have
followed. Often the model writes that text all the same, in other tokens; its choices are then known before it is asked.
"""

from __future__ import annotations

from jumpforward.decoding.drafter import Bid, Drafter, DraftRequest, DraftView, Outcome
from jumpforward.vocab.vocabulary import Vocabulary

_CONFIDENCE = 0.8


class RejectedRows(Drafter):
    """Drafts the model's choices in rows that were thrown away, where the output's text comes to be theirs."""

    name = "guesses"

    def start(self, request: DraftRequest) -> Drafter:
        """Return the source of one request."""
        return _Guesses(request.vocabulary)


class _Guesses(RejectedRows):
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._start = 0  # the length of the output's text in front of the refused draft
        self._text = b""  # of the draft
        self._choices: dict[int, int] = {}  # by the length of the output's text, what the model chose behind it

    def propose(self, view: DraftView) -> Bid | None:
        token = self._choices.get(len(view.output_bytes))
        if token is None or not self._text.startswith(view.output_bytes[self._start :]):
            return None
        return Bid((token,), _CONFIDENCE)

    def learn(self, outcome: Outcome) -> None:
        if outcome.num_accepted == len(outcome.tokens):
            return
        token_bytes = self._vocabulary.token_bytes
        self._start = length = outcome.len_before_bytes
        self._text = self._vocabulary.text_bytes(outcome.tokens)
        self._choices = {}
        for row, token in enumerate(outcome.tokens, start=1):
            length += len(token_bytes[token])
            choice = outcome.choices.get(row)
            if row > outcome.num_accepted and choice is not None:
                self._choices[length] = choice
