"""Drafts of what the model said behind a token that it refused.

When a draft is refused at one place, the rows behind it hold the model's choices for the text that would have
followed. Often the model writes that text all the same, in other tokens; its choices are then known before it is asked.
Where they are drawn, the place in other tokens has another random number: the token is drawn again from the same row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jumpforward.decoding.drafter import Bid, Drafter, DraftRequest, DraftView, Outcome

if TYPE_CHECKING:
    import torch

_CONFIDENCE = 0.8


class RejectedRows(Drafter):
    """Drafts the model's choices in rows that were thrown away, where the output's text comes to be theirs."""

    name = "guesses"

    def start(self, request: DraftRequest) -> Drafter:
        """Return the source of one request."""
        return _Guesses(request)


class _Guesses(RejectedRows):
    def __init__(self, request: DraftRequest) -> None:
        self._vocabulary = request.vocabulary
        self._sampler = request.sampler
        self._start = 0  # the length of the output's text in front of the refused draft
        self._text = b""  # of the draft
        self._choices: dict[int, int] = {}  # by the length of the output's text, what the model chose behind it
        self._scores: dict[int, torch.Tensor] = {}  # what that was drawn from

    def propose(self, view: DraftView) -> Bid | None:
        length = len(view.output_bytes)
        token = self._choices.get(length)
        if token is None or not self._text.startswith(view.output_bytes[self._start :]):
            return None
        scores = self._scores.get(length)
        if scores is not None:
            token = int(self._sampler.draw(scores[None], [len(view.output_ids)]))
        return Bid((token,), _CONFIDENCE)

    def learn(self, outcome: Outcome) -> None:
        if outcome.num_accepted == len(outcome.tokens):
            return
        token_bytes = self._vocabulary.token_bytes
        self._start = length = outcome.len_before_bytes
        self._text = self._vocabulary.text_bytes(outcome.tokens)
        self._choices, self._scores = {}, {}
        for row, token in enumerate(outcome.tokens, start=1):
            length += len(token_bytes[token])
            choice = outcome.choices.get(row)
            if row > outcome.num_accepted and choice is not None:
                self._choices[length] = choice
                if row in outcome.scores:
                    self._scores[length] = outcome.scores[row].clone()  # not the whole pass's
