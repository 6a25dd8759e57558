"""What a chunk of tokens costs against a single one, and what the predicted passes come to by that.

A curve is given as text, ``1:1,8:1.5,32:2.6`` (tokens : seconds, or any unit of time), or measured on a model. Between
its points it is a straight line, and behind the last one it goes on as the last line does.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from pydantic import BaseModel

from jumpforward.errors import OptionError
from jumpforward.report.counts import TokenCounts

if TYPE_CHECKING:
    from jumpforward.engine.runner import Runner, SequenceCache

_LENGTHS = (1, 2, 4, 8, 16, 32, 64)  # tokens of the chunks that are measured
_NUM_CONTEXT = 256  # tokens in the cache in front of them
_NUM_ROUNDS = 7


class ChunkCost(BaseModel):
    """The time of a forward pass by the tokens that it feeds.

    Attributes:
        points: (tokens, time), ascending in both; the first is one token.
        source: where they come from, in words.
    """

    points: list[tuple[int, float]]
    source: str

    def cost(self, len_chunk: int) -> float:
        """Return the time of one pass."""
        if len(self.points) == 1:
            return self.points[0][1]
        lengths = [length for length, _ in self.points]
        index = min(max(1, bisect_right(lengths, len_chunk)), len(lengths) - 1)
        (left, low), (right, high) = self.points[index - 1], self.points[index]
        return low + (high - low) * (len_chunk - left) / (right - left)

    def total(self, chunks: dict[int, int]) -> float:
        """Return the time of passes, {tokens: passes}."""
        return sum(count * self.cost(length) for length, count in chunks.items())

    def text(self, unit: float = 1.0) -> str:
        """Return the curve as :func:`parsed` reads it, times divided by ``unit``."""
        return ",".join(f"{length}:{spent / unit:.4g}" for length, spent in self.points)


class Payoff(BaseModel):
    """What forcing saves by a cost curve, over the documents of a tally.

    Attributes:
        speedups: by policy and bound, the time of ``masked`` divided by its own; only the model's passes count.
        break_even: for ``exact`` and ``canonical``, the share of drafts that the model must confirm so that the
            policy is no slower than ``masked``, on a straight line between its bounds; None where it is slower still
            when all are confirmed.
    """

    speedups: dict[str, float]
    break_even: dict[str, float | None]


def payoff(counts: TokenCounts, curve: ChunkCost) -> Payoff:
    """Return what a tokenizer's figures come to."""
    times = {bound: curve.total(chunks) for bound, chunks in counts.chunks.items()}
    masked = times.get("masked", 0.0)
    speedups = {bound: round(masked / spent, 4) for bound, spent in times.items() if spent}
    break_even = {
        policy: _break_even(masked, times.get(f"{policy}_most", masked), times.get(f"{policy}_fewest", masked))
        for policy in ("exact", "canonical")
    }
    return Payoff(speedups=speedups, break_even=break_even)


def _break_even(masked: float, none_confirmed: float, all_confirmed: float) -> float | None:
    if none_confirmed <= masked:
        return 0.0
    if all_confirmed > masked:
        return None
    return round((none_confirmed - masked) / (none_confirmed - all_confirmed), 4)


def parsed(text: str) -> ChunkCost:
    """Return a curve given as text.

    Raises:
        OptionError: it is not one.
    """
    wanted = "ascending tokens:time pairs that begin with 1 token, such as 1:1,8:1.5,32:2.6, or 'measure'"
    try:
        points = [(int(length), float(spent)) for length, spent in (pair.split(":") for pair in text.split(","))]
    except ValueError as error:
        raise OptionError("--chunk-cost", text, wanted) from error
    ascending = all(left[0] < right[0] and left[1] <= right[1] for left, right in pairwise(points))
    if points[0][0] != 1 or not 0 < points[0][1] < float("inf") or not ascending:
        raise OptionError("--chunk-cost", text, wanted)
    return ChunkCost(points=points, source="given")


class ChunkClock:
    """Times forward passes of one row behind a number of cached tokens."""

    def __init__(self, runner: Runner, num_context: int) -> None:
        """Fill a cache with ``num_context`` tokens."""
        self._runner = runner
        self._num_context = num_context
        self._cache = self._filled()

    def seconds(self, len_chunk: int, *, verified: bool = True) -> float:
        """Return the seconds of a pass over a chunk, the cache as it was before.

        Args:
            len_chunk: the tokens that are fed.
            verified: ask for logits behind every token, as drafts need them; otherwise behind the last alone.
        """
        keep = range(len_chunk) if verified else [len_chunk - 1]
        start = time.perf_counter()
        logits = self._runner.forward(self._cache, [[0] * len_chunk], [keep])[0]
        logits[-1, 0].item()  # waits for a device that runs on its own
        seconds = time.perf_counter() - start
        if self._runner.no_rollback_reason is None:
            self._cache.crop(self._num_context)
        else:
            self._cache = self._filled()
        return seconds

    def _filled(self) -> SequenceCache:
        cache = self._runner.new_cache()
        self._runner.forward(cache, [[0] * self._num_context], [[self._num_context - 1]])
        return cache


def measured(model: str | None, dtype: str | None = None) -> ChunkCost:
    """Return the curve of a model on this machine: medians, one chunk after the other in turn."""
    from jumpforward.engine.pretrained import load_pretrained
    from jumpforward.engine.runner import Runner

    runner = Runner(load_pretrained(model, dtype, None)[0])
    clock = ChunkClock(runner, _NUM_CONTEXT)
    spent: dict[int, list[float]] = {length: [] for length in _LENGTHS}
    for turn in range(-1, _NUM_ROUNDS):  # the first round does not count
        for length in _LENGTHS:
            seconds = clock.seconds(length)
            if turn >= 0:
                spent[length].append(seconds)
    name = model or "the default model"
    dtype_name = str(runner.model.dtype).removeprefix("torch.")
    return through_medians(spent, f"measured: {name}, {dtype_name}, {_NUM_CONTEXT} tokens in the cache")


def through_medians(spent: Mapping[int, Sequence[float]], source: str) -> ChunkCost:
    """Return the curve through the medians of measured times, {tokens: times}; where one falls, it stays level."""
    rising: list[tuple[int, float]] = []
    for length, times in sorted(spent.items()):
        rising.append((length, max(median(times), rising[-1][1] if rising else 0.0)))
    return ChunkCost(points=rising, source=source)
