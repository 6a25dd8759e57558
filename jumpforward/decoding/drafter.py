"""What a source of drafts sees, says and learns.

A source can cost rows of a chunk. It can never change the output: a draft token is kept only where the model's own
choice, under the same mask and the same random number, is that token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from jumpforward.decoding.masks import DraftMasks
from jumpforward.grammar.spec import Grammar
from jumpforward.matching.matcher import Matcher
from jumpforward.vocab.vocabulary import Vocabulary

if TYPE_CHECKING:
    import numpy as np
    import torch

    from jumpforward.decoding.sampling import Sampler


class Bid(NamedTuple):
    """Tokens that may come next, in order, and how likely each of them is if those before it are right.

    The confidence is a first guess, from 0 to 1: how often a source was right when it said so is measured, and takes
    its place. The first token must be legal, or the bid is passed over. A source that knows things in several ways
    may name the way: bids of a kind are judged together, so that one kind does not pay for another.
    """

    tokens: Sequence[int]
    confidence: float
    kind: str = ""


@dataclass(frozen=True)
class DraftRequest:
    """What is known of a request before its first token; ``sampler`` is what draws its tokens."""

    prompt_ids: Sequence[int]
    grammar: Grammar
    vocabulary: Vocabulary
    sampler: Sampler

    @cached_property
    def prompt_bytes(self) -> bytes:
        """The prompt's text; special tokens have none."""
        return self.vocabulary.text_bytes(self.prompt_ids)


class Stake(NamedTuple):
    """What there is to win for a source that takes its time, at the place where it is asked.

    Attributes:
        reach: how likely the draft is right up to here.
        rival: how likely the best token is right that others bid here.
        bar: how likely a token must be reached and right to be worth its row.
        token_s: what a token costs just now, in seconds: what one more is worth.
    """

    reach: float
    rival: float
    bar: float
    token_s: float

    def gain_s(self, confidence: float) -> float:
        """Return the seconds that a token of this confidence is likely to save, beyond what there is without it."""
        return (self.reach * confidence - max(self.reach * self.rival, self.bar)) * self.token_s


class DraftView:
    """One place in a draft: the sequence, with what is drafted so far behind it, and what is legal there.

    Nothing here may be changed, or kept: it is another place as soon as ``propose`` returns.

    Attributes:
        prompt_ids: the prompt's tokens.
        output_ids: the output's tokens, the draft's included.
        output_bytes: their text.
        num_output: how many of ``output_ids`` are the output's own.
        matcher: the request's own, moved along the draft. Query it; fork it before moving it.
        masks: the rows of the whole draft.
        has_choice: whether the grammar is known to go on in several ways here; see :meth:`Matcher.has_choice`.
        stake: what there is to win here; only slow sources are told.
        spent_s: the seconds that slow sources took for this draft; they add to it.
    """

    __slots__ = (
        "has_choice",
        "masks",
        "matcher",
        "num_output",
        "output_bytes",
        "output_ids",
        "prompt_ids",
        "spent_s",
        "stake",
    )

    def __init__(
        self,
        prompt_ids: Sequence[int],
        output_ids: list[int],
        output_bytes: bytearray,
        matcher: Matcher,
        masks: DraftMasks,
    ) -> None:
        self.prompt_ids = prompt_ids
        self.output_ids = output_ids
        self.output_bytes = output_bytes
        self.num_output = len(output_ids)
        self.matcher = matcher
        self.masks = masks
        self.has_choice = False
        self.stake: Stake
        self.spent_s = 0.0

    @property
    def mask(self) -> np.ndarray:
        """The legal tokens, packed: int32, shape (ceil(width / 32),); see :meth:`allows`."""
        return self.masks.look(len(self.output_ids) - self.num_output, self.matcher)

    def put_off_mask(self) -> None:
        """Have this place's mask filled when somebody looks at it, or behind the launch of the pass."""
        self.masks.look_later(len(self.output_ids) - self.num_output)

    def allows(self, token: int) -> bool:
        """Whether a token is legal here."""
        mask, word = self.mask, token >> 5
        return 0 <= word < len(mask) and bool(mask.item(word) >> (token & 31) & 1)

    def last_ids(self, num_tokens: int) -> tuple[int, ...]:
        """Return the last tokens of prompt, output and draft."""
        missing = num_tokens - len(self.output_ids)
        if missing <= 0:
            return tuple(self.output_ids[-num_tokens:])
        return (*self.prompt_ids[-missing:], *self.output_ids)


@dataclass(frozen=True)
class Outcome:
    """What became of a draft.

    Attributes:
        output_ids: the output, with the tokens that the pass has made.
        num_before: how many of them were there before.
        len_before_bytes: the length of their text.
        tokens: the draft, which began behind them.
        choices: the model's choice where each draft token stood, by its index, and behind the last; also behind a
            token that it refused. None where no legal token had a finite logit. Where only one token was legal the
            model was not asked.
        num_accepted: how many of the draft's tokens are in the output.
        scores: what the choices were drawn from, by the same indices: masked logits, shape (width,). None are there
            where nothing is drawn.
    """

    output_ids: Sequence[int]
    num_before: int
    len_before_bytes: int
    tokens: Sequence[int]
    choices: Mapping[int, int | None]
    num_accepted: int
    scores: Mapping[int, torch.Tensor] = field(default_factory=dict)


class Drafter:
    """A source of drafts; derive from it and give it a name and ``propose``.

    The object that an engine is given serves all of its requests, maybe from several threads. A source with a state
    for each request returns another object from :meth:`start`. An exception ends the request.

    Attributes:
        name: what it is called in accounts; one source of a kind to an engine.
        is_slow: whether its bids take about as long as a forward pass. It is then asked behind the others, and is
            told what there is to win; see :class:`~jumpforward.decoding.allowance.Allowance`.
    """

    name: str
    is_slow = False

    def start(self, request: DraftRequest) -> Drafter | None:  # noqa: ARG002  (for those who want it)
        """Return the source of one request: this one, or one that is made for it; None where it has nothing to say."""
        return self

    def propose(self, view: DraftView) -> Bid | Sequence[Bid] | None:
        """Return what may come next: a bid, several that rival each other, or None for no idea.

        It is asked at every place at which it has no bid running. Of rivals the one is taken whose kind has been right
        more often.
        """
        raise NotImplementedError

    def learn(self, outcome: Outcome) -> None:
        """Hear what became of a draft, whoever made it: after every pass, and behind the last token."""
