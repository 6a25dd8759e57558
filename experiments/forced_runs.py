"""What became of every draft of forced text, and what the model gave it under the mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xgrammar

from jumpforward.decoding.drafter import Bid, Drafter, DraftView, Outcome
from jumpforward.decoding.drafts import only_token
from jumpforward.matching.matcher import Matcher
from jumpforward.vocab.vocabulary import Vocabulary


@dataclass(frozen=True)
class Run:
    """One draft of forced text, and what became of it."""

    kind: str
    mass: float  # of all other spellings, under the mask
    is_likeliest: bool  # each of its tokens is the likeliest legal one
    is_rejected: bool
    refused: tuple[str, str] | None  # the draft token and the model's choice in its place


class Observer(Drafter):
    """Proposes nothing, and notes what becomes of the drafts of others."""

    name = "observer"

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def watch(self, vocabulary: Vocabulary, matcher: Matcher) -> None:
        """Begin with a new request, whose matcher this one is a second of."""
        self.runs = []
        self._vocabulary, self._matcher = vocabulary, matcher
        self._bitmask = xgrammar.allocate_token_bitmask(1, vocabulary.width)
        self._said: dict[tuple[int, ...], torch.Tensor] = {}
        self._len_run_bytes = 0  # where the last run ends in the output

    def hear(self, output_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """Note the logits behind an output, shape (vocab,), and leave them as they are: a logits processor."""
        self._said[tuple(output_ids)] = logits
        return logits

    def propose(self, view: DraftView) -> Bid | None:  # noqa: ARG002
        """Bid nothing."""
        return None

    def learn(self, outcome: Outcome) -> None:
        """Note a run, and move on to the end of the output."""
        if outcome.tokens:
            self._note(outcome)
        for token in outcome.output_ids[outcome.num_before :]:
            self._consume(token)
        self._said.clear()

    def _consume(self, token: int) -> None:
        if not self._matcher.consume(token):
            raise RuntimeError(f"expected a legal token, got {token}")

    def _note(self, outcome: Outcome) -> None:
        steps = self._steps(outcome)
        is_rejected = outcome.num_accepted < len(outcome.tokens)
        kind = "rest" if outcome.len_before_bytes < self._len_run_bytes else "later" if outcome.num_before else "first"
        text_bytes = self._vocabulary.text_bytes
        self._len_run_bytes = outcome.len_before_bytes + len(text_bytes(outcome.tokens))
        refused = None
        if is_rejected:
            pair = outcome.tokens[outcome.num_accepted], outcome.output_ids[-1]
            refused = tuple(text_bytes([token]).decode(errors="replace") for token in pair)
        mass = 1 - float(np.exp(sum(logprob for logprob, _ in steps)))
        self.runs.append(Run(kind, mass, all(is_likeliest for _, is_likeliest in steps), is_rejected, refused))

    def _steps(self, outcome: Outcome) -> list[tuple[float, bool]]:
        """Return for each draft token its log-probability under the mask, and whether it is the likeliest."""
        before = tuple(outcome.output_ids[: outcome.num_before])
        steps = []
        for index, token in enumerate(outcome.tokens):
            self._matcher.fill_bitmask(self._bitmask, 0)
            if only_token(self._bitmask.numpy()[0]) is None:
                logits = self._said[(*before, *outcome.tokens[:index])].clone()[None]
                xgrammar.apply_token_bitmask_inplace(logits, self._bitmask)
                steps.append(
                    (float(torch.log_softmax(logits[0].double(), dim=-1)[token]), int(logits[0].argmax()) == token)
                )
            self._consume(token)
        self._matcher.rollback(len(outcome.tokens))
        return steps
