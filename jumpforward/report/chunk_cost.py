"""What a chunk of tokens costs against a single one, and what the predicted passes come to by that.

A curve is given as text, ``1:1,8:1.5,32:2.6`` (tokens : seconds, or any unit of time), or measured on a model. Between
its points it is a straight line, and behind the last one it goes on as the last line does.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from itertools import pairwise
from statistics import median

from pydantic import BaseModel

from jumpforward.errors import OptionError
from jumpforward.report.counts import TokenCounts

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


def measured(model: str | None, dtype: str | None = None) -> ChunkCost:
    """Return the curve of a model on this machine: medians, one chunk after the other in turn."""
    from jumpforward.engine.pretrained import load_pretrained
    from jumpforward.engine.runner import Runner

    runner = Runner(load_pretrained(model, dtype, None)[0])
    spent: dict[int, list[float]] = {length: [] for length in _LENGTHS}
    for turn in range(-1, _NUM_ROUNDS):  # the first round does not count
        for length in _LENGTHS:
            cache = runner.new_cache()
            runner.forward(cache, [[0] * _NUM_CONTEXT], [[_NUM_CONTEXT - 1]])
            start = time.perf_counter()
            runner.forward(cache, [[0] * length], [list(range(length))])
            if turn >= 0:
                spent[length].append(time.perf_counter() - start)
    points = [(length, median(seconds)) for length, seconds in spent.items()]
    rising = [(length, max(value for _, value in points[: index + 1])) for index, (length, _) in enumerate(points)]
    name = model or "the default model"
    dtype_name = str(runner.model.dtype).removeprefix("torch.")
    return ChunkCost(points=rising, source=f"measured: {name}, {dtype_name}, {_NUM_CONTEXT} tokens in the cache")
