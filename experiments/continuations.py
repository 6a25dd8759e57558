"""What a model says behind many continuations of one context; shared by the experiments that sum over tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

import jumpforward as jf
from jumpforward.engine.prefixes import num_common

Tokens = tuple[int, ...]


class Context:
    """A context that is computed once. Each row of a cache goes on from what it holds of a continuation already."""

    def __init__(self, engine: jf.Engine, ids: Sequence[int], num_rows: int = 32) -> None:
        """Feed a context of at least two tokens."""
        self._runner = engine._runner
        self._cache = self._runner.new_cache(num_rows)
        # The last token is fed with each continuation, so that there is something to feed for the empty one too.
        self._last, self._num_shared = ids[-1], len(ids) - 1
        self._held: list[Tokens] = [()] * num_rows
        self._runner.forward(self._cache, [ids[:-1]], [[]], [0])
        states = self._cache.read(0, self._num_shared)
        for row in range(1, num_rows):
            self._cache.write(row, self._num_shared, states)

    @property
    def num_rows(self) -> int:
        """How many continuations are looked at in one pass."""
        return len(self._held)

    def logprobs(self, continuations: Sequence[Tokens]) -> Iterator[torch.Tensor]:
        """Give what the model says behind each continuation: float64 log-probabilities, shape (vocab,)."""
        for start in range(0, len(continuations), self.num_rows):
            yield from self._pass([(self._last, *each) for each in continuations[start : start + self.num_rows]])

    def _pass(self, sequences: Sequence[Tokens]) -> list[torch.Tensor]:
        place = self._assign(sequences)
        rows = sorted(place)
        chunks = []
        for row in rows:
            sequence = sequences[place[row]]
            num_same = min(num_common(self._held[row], sequence), len(sequence) - 1)
            self._cache.crop(self._num_shared + num_same, row)
            self._held[row] = sequence
            chunks.append(sequence[num_same:])
        logits = self._runner.forward(self._cache, chunks, [[len(chunk) - 1] for chunk in chunks], rows)
        said = dict(zip((place[row] for row in rows), logits, strict=True))
        return [torch.log_softmax(said[index][0].double(), dim=-1) for index in range(len(sequences))]

    def _assign(self, sequences: Sequence[Tokens]) -> dict[int, int]:
        """Return for each row in use the index of its sequence: one of which it holds as much as any row does."""
        free = dict(enumerate(self._held))
        place = {}
        for index in sorted(range(len(sequences)), key=lambda index: -len(sequences[index])):
            row = max(free, key=lambda row: num_common(free[row], sequences[index]))
            del free[row]
            place[row] = index
        return place
