"""What a forward pass costs, by the number of its rows: measured while the engine runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median_low
from threading import Lock
from typing import NamedTuple, Protocol

_MAX_ROWS = 64  # of passes that are looked at: behind that, prompts and not drafts make them long
_NUM_RECENT = 15  # passes of a size class that are remembered
_PRIOR_SHARE = 0.03  # of a pass of one row that another row costs, as long as nothing else is known
_PRIOR_WEIGHT = 4.0


class Cost(NamedTuple):
    """A pass of n rows takes about ``pass_s + n * row_s`` seconds."""

    pass_s: float
    row_s: float

    def of(self, num_rows: int) -> float:
        """Return the seconds that a pass of so many rows takes."""
        return self.pass_s + num_rows * self.row_s


class PassCosts(Protocol):
    """What passes cost."""

    @property
    def now(self) -> Cost:
        """The cost of a pass."""
        ...

    def observe(self, num_rows: int, seconds: float) -> None:
        """Take note of a pass over so many rows, padding included."""
        ...

    def for_draft_model(self) -> PassCosts:
        """Return what passes of a draft model cost, of which nothing is known if it is to be measured."""
        ...


@dataclass(frozen=True)
class FixedCosts:
    """Costs that are known. Drafts then depend on tokens alone, and not on clocks.

    ``draft_s`` is what a pass of a draft model takes, however many rows it has.
    """

    pass_s: float
    row_s: float
    draft_s: float = 0.0

    @property
    def now(self) -> Cost:
        """The cost of a pass."""
        return Cost(self.pass_s, self.row_s)

    def observe(self, num_rows: int, seconds: float) -> None:
        """Do nothing."""

    def for_draft_model(self) -> FixedCosts:
        """Return the costs of a draft model's passes."""
        return FixedCosts(self.draft_s, 0.0)


class MeasuredCosts:
    """A line through the medians of recent passes of every size class. Shared by threads.

    Medians, since a pass may be held up by anything; and classes by powers of two, so that the many passes of one
    size do not drive out the memory of the others.
    """

    def __init__(self) -> None:
        self._recent: dict[int, deque[tuple[float, int]]] = {}
        self._lock = Lock()
        self._cost = Cost(1.0, _PRIOR_SHARE)  # only the ratio matters before the first pass

    @property
    def now(self) -> Cost:
        """The cost of a pass as far as is known."""
        return self._cost

    def observe(self, num_rows: int, seconds: float) -> None:
        """Take note of a pass over so many rows, padding included."""
        if not 0 < num_rows <= _MAX_ROWS or seconds <= 0:
            return
        with self._lock:
            recent = self._recent.setdefault(num_rows.bit_length(), deque(maxlen=_NUM_RECENT))
            recent.append((seconds, num_rows))
            self._cost = self._fitted()

    def for_draft_model(self) -> MeasuredCosts:
        """Return costs of which nothing is known."""
        return MeasuredCosts()

    def _fitted(self) -> Cost:
        """Return the line of least squares, drawn towards the prior slope where there is little to tell it from."""
        points = []
        for recent in self._recent.values():
            seconds, rows = median_low(recent)  # by the seconds, with the rows of the same pass
            points.append((len(recent), rows, seconds))
        weight = sum(count for count, _, _ in points)
        mean_rows = sum(count * rows for count, rows, _ in points) / weight
        mean_s = sum(count * seconds for count, _, seconds in points) / weight
        spread = sum(count * (rows - mean_rows) ** 2 for count, rows, _ in points)
        together = sum(count * (rows - mean_rows) * (seconds - mean_s) for count, rows, seconds in points)
        prior_s = mean_s * _PRIOR_SHARE / (1 + _PRIOR_SHARE * mean_rows)
        row_s = max(0.0, (together + _PRIOR_WEIGHT * prior_s) / (spread + _PRIOR_WEIGHT))
        return Cost(max(mean_s - row_s * mean_rows, 0.05 * mean_s), row_s)
