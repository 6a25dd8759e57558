"""What became of every draft of forced text, and what the model gave it under the mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    mass: float  # of all that is not the draft, under the mask
    mass_beyond: float  # of that, of tokens that go on behind the run's end
    is_likeliest: bool  # each of its tokens is the likeliest legal one
    is_rejected: bool
    is_beyond: bool  # rejected for a token that goes on behind the run's end
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
        self._lengths = torch.tensor([len(data) for data in vocabulary.token_bytes])
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
        text_bytes, accepted = self._vocabulary.text_bytes, outcome.num_accepted
        kind = "rest" if outcome.len_before_bytes < self._len_run_bytes else "later" if outcome.num_before else "first"
        self._len_run_bytes = outcome.len_before_bytes + len(text_bytes(outcome.tokens))
        is_beyond, refused = False, None
        if is_rejected := accepted < len(outcome.tokens):
            draft, chosen = (text_bytes([token]) for token in (outcome.tokens[accepted], outcome.output_ids[-1]))
            is_beyond = len(chosen) > len(text_bytes(outcome.tokens[accepted:]))
            refused = draft.decode(errors="replace"), chosen.decode(errors="replace")
        reach, beyond, is_likeliest = self._weigh(outcome)
        self.runs.append(Run(kind, 1 - reach, beyond, is_likeliest, is_rejected, is_beyond, refused))

    def _weigh(self, outcome: Outcome) -> tuple[float, float, bool]:
        """Return the probability of a draft, that of tokens which go on behind its end, and whether greedy keeps it."""
        before = tuple(outcome.output_ids[: outcome.num_before])
        reach, beyond, is_likeliest = 1.0, 0.0, True
        for index, token in enumerate(outcome.tokens):
            self._matcher.fill_bitmask(self._bitmask, 0)
            if only_token(self._bitmask.numpy()[0]) is None:
                shares = self._shares((*before, *outcome.tokens[:index]))
                len_rest = len(self._vocabulary.text_bytes(outcome.tokens[index:]))
                beyond += reach * float(shares[self._lengths > len_rest].sum())
                is_likeliest &= int(shares.argmax()) == token
                reach *= float(shares[token])
            self._consume(token)
        self._matcher.rollback(len(outcome.tokens))
        return reach, beyond, is_likeliest

    def _shares(self, path: tuple[int, ...]) -> torch.Tensor:
        """Return the probabilities behind an output under the mask: float64, shape (vocab,)."""
        logits = self._said[path].clone()[None]
        xgrammar.apply_token_bitmask_inplace(logits, self._bitmask)
        return torch.softmax(logits[0].double(), dim=-1)
