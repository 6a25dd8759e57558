"""Drafts: tokens proposed ahead of the model, and the masks under which it is asked about them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from jumpforward.decoding.drafter import Bid, Drafter, DraftRequest, DraftView, Outcome, Stake
from jumpforward.decoding.forced import FORCED
from jumpforward.decoding.masks import DraftMasks
from jumpforward.decoding.pace import MAX_GUESSES, Claim, Pace
from jumpforward.matching.matcher import Matcher
from jumpforward.stats import Counters

if TYPE_CHECKING:
    import torch

# Where another source speaks up, it knows this place; the tokenizer knows all places alike.
_FORCED_RANK = 0.5
_SURE = 0.9  # a bid that is worth so much goes on without asking the other sources


@dataclass
class Draft:
    """A walk of the matcher ahead of the sequence.

    Mask row i holds what is legal where ``tokens[i]`` stands; a last row, behind all of them, is there unless the
    output cannot go on.

    Attributes:
        tokens: the tokens, in order.
        claims: for each, whose it is and how sure that source was; None where it is the only legal one, and the model
            need not be asked.
        has_next: whether there is a mask row behind the last token.
    """

    tokens: list[int] = field(default_factory=list)
    claims: list[Claim | None] = field(default_factory=list)
    has_next: bool = True

    @property
    def open_rows(self) -> list[int]:
        """The rows at which the model is asked."""
        rows = [row for row, claim in enumerate(self.claims) if claim is not None]
        return [*rows, len(self.tokens)] if self.has_next else rows


class _Running:
    """A bid on its way."""

    __slots__ = ("claim", "is_forced", "later", "next", "source", "tokens")

    def __init__(self, source: int, name: str, bid: Bid) -> None:
        self.source = source
        self.is_forced = name == FORCED
        self.tokens = bid.tokens
        self.next = 0
        self.claim = Claim.of(name, True, bid.confidence, bid.kind)
        self.later = Claim.of(name, False, bid.confidence, bid.kind)

    @property
    def token(self) -> int:
        return self.tokens[self.next]

    def goes_on(self, token: int) -> bool:
        """Move over a token; return whether there is one behind it."""
        if self.token != token:
            return False
        self.next += 1
        self.claim = self.later
        return self.next < len(self.tokens)


class DraftBuilder:
    """Walks a matcher along what is certain and what the sources of a request bid."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        request: DraftRequest,
        pace: Pace,
        counters: Counters,
        *,
        skips_certain: bool,
        max_draft: int,
        written: Callable[[Sequence[int]], Sequence[int]] | None = None,
    ) -> None:
        """Make the builder of one request.

        ``written`` gives what the policy will write behind an output without asking, from the matcher's place. It has
        to be written along a draft too, or the model would be asked where it is not asked without drafts.
        """
        started = (drafter.start(request) for drafter in drafters)
        self._drafters = [drafter for drafter in started if drafter is not None]
        self._quick = [source for source, drafter in enumerate(self._drafters) if not drafter.is_slow]
        self._slow = [source for source, drafter in enumerate(self._drafters) if drafter.is_slow]
        self._spent_s = 0.0  # by slow sources, for the last draft
        self._request = request
        self._pace = pace
        self._counters = counters
        self._skips_certain = skips_certain
        self.max_draft = max_draft
        self._written = written
        self._output_bytes = bytearray()  # of the first tokens of the output, so many:
        self._num_spelled = 0

    def build(
        self, output_ids: Sequence[int], matcher: Matcher, masks: DraftMasks, num_left: int, num_sharing: int = 1
    ) -> Draft:
        """Return a draft for an output that has room for ``num_left`` tokens; the matcher is left where it was.

        ``masks`` has max_draft + 1 rows; row i becomes that of position i. A row without a legal token ends the draft
        in front of it. ``num_sharing`` requests share the pass.
        """
        draft = Draft()
        self._spell(output_ids)
        masks.begin()
        view = DraftView(self._request.prompt_ids, list(output_ids), self._output_bytes, matcher, masks)
        len_before = len(self._output_bytes)
        stake = Stake(1.0, 0.0, self._pace.bar(num_sharing), self._pace.token_s(num_sharing))
        try:
            self._walk(draft, view, num_left, stake)
        finally:  # also where a source raises
            self._spent_s = view.spent_s
            matcher.rollback(len(draft.tokens))
            del self._output_bytes[len_before:]
        if draft.has_next and draft.tokens and masks.is_dead_end(len(draft.tokens)):
            draft.has_next = False  # a dead end: for the next step to report, if the draft gets there
        return draft

    def _spell(self, output_ids: Sequence[int]) -> None:
        """Bring the output's text up to date. Policies that draft never rewrite it."""
        if self._drafters:
            self._output_bytes += self._request.vocabulary.text_bytes(output_ids[self._num_spelled :])
            self._num_spelled = len(output_ids)

    def _walk(self, draft: Draft, view: DraftView, num_left: int, stake: Stake) -> None:
        """Move the view's matcher ahead, and write down the way in ``draft`` and in the view."""
        matcher = view.matcher
        running: list[_Running] = []
        num_guesses = 0
        while draft.has_next:
            token, claim = self._certain(view), None
            if len(draft.tokens) == self.max_draft:
                break
            if token is None:
                best, worth = self._best(view, running, stake, may_guess=num_guesses < MAX_GUESSES)
                if best is None:
                    break
                reach = stake.reach * worth
                if reach < stake.bar:
                    self._pace.refuse(best.claim)
                    break
                token, claim = best.token, best.claim
                stake = stake._replace(reach=reach)
                num_guesses += not best.is_forced
            if not matcher.consume(token):
                break
            self._append(draft, view, running, token, claim, num_left)
            if claim is not None and draft.has_next and self._written is not None:
                self._write(draft, view, running, self._written(view.output_ids), num_left)

    def _certain(self, view: DraftView) -> int | None:
        """Return the only legal token where it is taken without asking; look at the mask only if there may be one."""
        view.put_off_mask()
        view.has_choice = view.matcher.has_choice()
        if view.has_choice:
            return None
        mask = view.mask
        return only_token(mask) if self._skips_certain else None

    def _append(
        self,
        draft: Draft,
        view: DraftView,
        running: list[_Running],
        token: int,
        claim: Claim | None,
        num_left: int,
    ) -> None:
        """Write down a token over which the matcher has moved."""
        running[:] = [bid for bid in running if bid.goes_on(token)]
        draft.tokens.append(token)
        draft.claims.append(claim)
        view.output_ids.append(token)
        view.output_bytes += self._request.vocabulary.token_bytes[token]
        draft.has_next = len(draft.tokens) < num_left and not view.matcher.is_terminated

    def _write(
        self, draft: Draft, view: DraftView, running: list[_Running], tokens: Sequence[int], num_left: int
    ) -> None:
        """Go over what the policy writes by itself; where that has no room, end the draft in front of it."""
        if len(draft.tokens) + len(tokens) > self.max_draft:
            draft.has_next = False
        for token in tokens:
            if not draft.has_next or not view.matcher.consume(token):
                break
            self._append(draft, view, running, token, None, num_left)

    def _best(
        self, view: DraftView, running: list[_Running], stake: Stake, *, may_guess: bool
    ) -> tuple[_Running | None, float]:
        """Ask the sources that have no bid running; return the best bid for a legal token, and its worth."""
        best, most = self._worthiest(view, running, may_guess)
        if best is not None and most >= _SURE and not best.claim.is_first:
            return best, most
        self._ask(self._quick, view, running, may_guess)
        best, most = self._worthiest(view, running, may_guess)
        if not self._slow or not may_guess:
            return best, most
        view.stake = stake._replace(rival=most)
        self._ask(self._slow, view, running, may_guess)
        return self._worthiest(view, running, may_guess)

    def _worthiest(self, view: DraftView, running: list[_Running], may_guess: bool) -> tuple[_Running | None, float]:
        best, best_worth, most = None, 0.0, -1.0
        for bid in running:
            if (may_guess or bid.is_forced) and view.allows(bid.token):
                worth = self._pace.worth(bid.claim)
                rank = worth * _FORCED_RANK if bid.is_forced and bid.claim.is_first else worth
                if rank > most:
                    best, best_worth, most = bid, worth, rank
        return best, best_worth

    def _ask(self, sources: Sequence[int], view: DraftView, running: list[_Running], may_guess: bool) -> None:
        """Ask those of the sources that have no bid running."""
        asked = [bid.source for bid in running]
        for source in sources:
            drafter = self._drafters[source]
            if source not in asked and (may_guess or drafter.name == FORCED):
                self._ask_one(source, drafter, view, running)

    def _ask_one(self, source: int, drafter: Drafter, view: DraftView, running: list[_Running]) -> None:
        start_s = time.perf_counter()
        try:
            said = drafter.propose(view)
        finally:
            self._counters.spent(drafter.name, time.perf_counter() - start_s)
        bids = (said,) if isinstance(said, Bid) else said or ()
        running += [_Running(source, drafter.name, bid) for bid in bids if bid.tokens]

    def learn(
        self,
        draft: Draft,
        output_ids: Sequence[int],
        choices: Mapping[int, int | None],
        num_kept: int,
        scores: Mapping[int, torch.Tensor],
    ) -> None:
        """Tell the sources, and the account, what became of a draft; ``num_kept`` tokens joined the output."""
        if not self._drafters:
            return
        accepted = 0
        while accepted < min(num_kept, len(draft.tokens)) and draft.tokens[accepted] == output_ids[accepted - num_kept]:
            accepted += 1
        judged = [
            (claim, row < accepted)
            for row, claim in enumerate(draft.claims[: accepted + (accepted < num_kept)])
            if claim is not None
        ]
        num_rows = draft.open_rows[-1] + 1 if draft.open_rows else 0
        self._pace.learn(judged, num_kept, num_rows, self._spent_s)
        num_before = len(output_ids) - num_kept
        outcome = Outcome(output_ids, num_before, len(self._output_bytes), draft.tokens, choices, accepted, scores)
        for drafter in self._drafters:
            start_s = time.perf_counter()
            try:
                drafter.learn(outcome)
            finally:
                self._counters.spent(drafter.name, time.perf_counter() - start_s)

    def close(self) -> None:
        """Let go of the sources of the request, which may hold caches of their own."""
        self._drafters, self._quick, self._slow = [], [], []


def only_token(words: np.ndarray) -> int | None:
    """Return the token of a mask row (int32, shape (words,)) that has exactly one bit set, else None."""
    used = np.flatnonzero(words)
    if len(used) != 1:
        return None
    word = int(words[used[0]]) & 0xFFFFFFFF
    return None if word & (word - 1) else int(used[0]) * 32 + word.bit_length() - 1
