"""Forward passes that the policies would take to write a document, predicted without a model.

The prediction is for a model that writes exactly this document in its canonical tokens, one token a position of its
own choice, and then ends it:

    masked: one pass a token, and one for the end.
    exact_fewest: wherever text is forced, its tokens are drafted, and the model confirms each that is also the
        document's own; it chooses the token behind them in the same pass.
    exact_most: no draft is ever confirmed. Each still costs a longer chunk.
    canonical_fewest: stable tokens are committed; the withheld rest is drafted and confirmed as above.
    canonical_most: stable tokens are committed, and no draft is confirmed.

Where a grammar permits nothing but the end, or one byte and then the end, that takes no pass, save under ``masked``.
Whether a token elsewhere is the only legal one is not looked for, which takes an index of tokens: such tokens can only
make the numbers smaller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from jumpforward.decoding.boundary import Boundary
from jumpforward.report.counts import POLICY_BOUNDS, TokenCounts, histogram
from jumpforward.report.walk import Walk
from jumpforward.vocab.vocabulary import ANY_BYTE


@dataclass(frozen=True)
class _Spelled:
    """Forced text at one token border of a document: its tokens, and how they agree with the document's."""

    num_ids: int = 0
    num_stable: int = 0
    num_agreeing: int = 0
    is_understood: bool = True

    @property
    def num_withheld(self) -> int:
        """Tokens that something could change."""
        return self.num_ids - self.num_stable

    @property
    def num_committed(self) -> int:
        """Stable tokens up to the first that is not the document's own."""
        return min(self.num_stable, self.num_agreeing)


class Laid:
    """A document's canonical tokens laid over its way through a grammar.

    Attributes:
        ids: the tokens.
        ends: where each ends, in bytes; ``ends[0]`` is 0, so that token i is ``ends[i]`` to ``ends[i + 1]``.
    """

    def __init__(self, found: Walk, ids: Sequence[int], lengths: Sequence[int], boundary: Boundary) -> None:
        self._found = found
        self.ids = tuple(ids)
        self.ends = [0, *accumulate(lengths)]
        self._run_ends = run_ends(found.forced)
        self._boundary = boundary
        self._spelled: dict[int, _Spelled] = {}

    def counts(self) -> TokenCounts:
        """Return the document's figures."""
        forced = self._is_forced()
        asked = [self.spelled(index) for index in self._first_borders()]
        chunks = {name: histogram(self.chunks(name)) for name in POLICY_BOUNDS}
        return TokenCounts(
            num_documents=1,
            num_tokens=len(self.ids),
            num_forced_tokens=sum(forced),
            num_straddling=self._num_across(lambda place: place - 1, lambda place: place),
            num_seams=self._num_across(lambda place: place, lambda place: place - 1),
            num_asked=len(asked),
            num_stable=sum(spelled.num_stable for spelled in asked),
            num_withheld=sum(spelled.num_withheld for spelled in asked),
            num_withheld_unknown=sum(spelled.num_withheld for spelled in asked if not spelled.is_understood),
            num_withheld_tails=sum(spelled.num_withheld > 0 for spelled in asked),
            num_spelled_otherwise=sum(spelled.num_stable - spelled.num_committed for spelled in asked),
            run_lengths=histogram(self._forced_in_runs(forced)),
            shares={100 * sum(forced) // max(1, len(forced)): 1},
            passes={name: sum(lengths.values()) for name, lengths in chunks.items()},
            chunks=chunks,
        )

    def spelled(self, index: int) -> _Spelled:
        """Return the forced text behind the first ``index`` tokens as the engine would spell it there."""
        if index not in self._spelled:
            start = self.ends[index]
            end = self._run_ends[start] if start < len(self._run_ends) else start
            self._spelled[index] = self._spell(index, self._found.data[start:end])
        return self._spelled[index]

    def chunks(self, bound: str) -> list[int]:
        """Return for each pass of a policy's bound how many tokens it feeds; the prompt counts as one token."""
        commits, confirms = bound.startswith("canonical"), bound.endswith("fewest")
        lengths: list[int] = []
        index = 0  # tokens of the document that are written
        ends_alone = self._found.ends_alone and bound != "masked"
        while index < len(self.ids) + (not ends_alone):
            committed = self.spelled(index).num_committed if commits else 0
            index += committed
            if ends_alone and self._rest_is_certain(index):
                break
            draft = self.spelled(index) if bound != "masked" else _Spelled()
            lengths.append(1 + committed + draft.num_ids)
            index += 1 + (draft.num_agreeing if confirms else 0)
        return lengths

    def _rest_is_certain(self, index: int) -> bool:
        """Whether at most one byte is left, and is forced: then one token is legal, and after it only the end."""
        num_left = self.ends[-1] - self.ends[index]
        return num_left == 0 or (num_left == 1 and self._found.forced[-1])

    def _spell(self, index: int, forced: bytes) -> _Spelled:
        if not forced:
            return _Spelled()
        next_bytes = self._found.live_bytes(self.ends[index] + len(forced))
        # Of what comes behind the next byte nothing is known: the engine may find a little more stable.
        spelling = self._boundary.spell(
            self.ids[:index], forced, lambda behind: ANY_BYTE if len(behind) > len(forced) else next_bytes
        )
        wanted = self.ids[index : index + len(spelling.ids)]
        agreeing = next((i for i, (ours, own) in enumerate(zip(spelling.ids, wanted, strict=False)) if ours != own),
                        len(wanted))  # fmt: skip
        return _Spelled(len(spelling.ids), spelling.num_stable, agreeing, spelling.is_understood)

    def _is_forced(self) -> list[bool]:
        """Return for each token whether it consists of forced bytes."""
        pairs = pairwise(self.ends)
        return [all(self._found.forced[start:end]) for start, end in pairs]

    def _first_borders(self) -> list[int]:
        """Return for each forced run the first token that begins in it; none for a run without such a token."""
        seen: dict[int, int] = {}
        for index, start in enumerate(self.ends[:-1]):
            if self._found.forced[start]:
                seen.setdefault(self._run_ends[start], index)
        return list(seen.values())

    def _forced_in_runs(self, forced: Sequence[bool]) -> list[int]:
        """Return for each forced run how many tokens lie inside it."""
        per_run = Counter({end: 0 for start, end in enumerate(self._run_ends) if self._found.forced[start]})
        per_run.update(self._run_ends[start] for start, inside in zip(self.ends, forced, strict=False) if inside)
        return list(per_run.values())

    def _num_across(self, forced_at: Callable[[int], int], free_at: Callable[[int], int]) -> int:
        """Return how many tokens hold, around some place inside them, one forced byte and one that is not."""
        forced = self._found.forced
        return sum(
            any(forced[forced_at(place)] and not forced[free_at(place)] for place in range(start + 1, end))
            for start, end in pairwise(self.ends)
        )


def run_ends(forced: Sequence[bool]) -> list[int]:
    """Return for each byte the end of the forced run that it lies in, or its own place where it is not forced."""
    ends = list(range(len(forced)))
    for place in range(len(forced) - 1, -1, -1):
        if forced[place]:
            is_last = place + 1 == len(forced) or not forced[place + 1]
            ends[place] = place + 1 if is_last else ends[place + 1]
    return ends
