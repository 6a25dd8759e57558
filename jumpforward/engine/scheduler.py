"""Who runs, and how many tokens of each: integers only.

A request *joins* when it arrives, is *ready* once its grammar is compiled, *runs* from when it is given a row, and
*leaves*. Rows go to ready requests in the order in which they became ready, so that an unready one holds nobody up
and overtakes nobody. Each step, :meth:`Scheduler.plan` shares the token budget out among the rows that run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Want(NamedTuple):
    """What a row would be fed next: tokens up to where the model is asked, and whether they begin with its prompt."""

    num_tokens: int
    is_prefill: bool


class Part(NamedTuple):
    """What a row is fed in a pass: the first ``num_tokens`` of what it wants."""

    key: int
    num_tokens: int


class Scheduler:
    """Plans for requests that are known by an integer each, their key.

    Attributes:
        num_rows: how many run at a time.
        token_budget: the most tokens that a step feeds, in all its passes together.
        max_padding: the most padding that a pass has, in tokens: about as much as a pass costs by itself; None for
            passes that have none, however unlike their parts.
        max_cells: the most tokens that the cache has room for, in all rows together; None for no limit. All rows
            are as long as the longest, so that a request may have to wait although a row is free.
    """

    def __init__(
        self, num_rows: int, *, token_budget: int, max_padding: int | None, max_cells: int | None = None
    ) -> None:
        self.num_rows = num_rows
        self.token_budget = token_budget
        self.max_padding = max_padding
        self.max_cells = max_cells
        self._lengths: dict[int, int] = {}  # of all that have joined, the most tokens that each may come to
        self._ready: deque[int] = deque()
        self._rows: dict[int, int] = {}  # in the order in which they were given
        self._num_waited: dict[int, int] = {}

    def join(self, key: int, max_length: int) -> None:
        """Take in a request that may come to ``max_length`` tokens, prompt and output."""
        self._lengths[key] = max_length

    def fits(self, max_length: int) -> bool:
        """Return whether a request of that length can ever run."""
        return self.max_cells is None or max_length <= self.max_cells

    def make_ready(self, key: int) -> None:
        """Put a request that has joined behind those that are ready."""
        self._ready.append(key)

    def leave(self, key: int) -> None:
        """Forget a request, wherever it is. Its row is free at once."""
        del self._lengths[key]
        self._num_waited.pop(key, None)
        if self._rows.pop(key, None) is None and key in self._ready:
            self._ready.remove(key)

    def admit(self) -> list[tuple[int, int]]:
        """Give free rows to ready requests in their order; return the new pairs of key and row.

        The first that has no room yet holds up those behind it, so that a long one gets its turn.
        """
        admitted = []
        while self._ready and (row := self._free_row(self._ready[0])) is not None:
            key = self._ready.popleft()
            self._rows[key] = row
            self._num_waited[key] = 0
            admitted.append((key, row))
        return admitted

    def _free_row(self, key: int) -> int | None:
        """Return the lowest free row, so that rows in use lie together; None where there is no room."""
        taken = set(self._rows.values())
        row = next((row for row in range(self.num_rows) if row not in taken), None)
        if row is None or self.max_cells is None:
            return row
        longest = max(self._lengths[other] for other in (key, *self._rows))
        return row if (max(taken | {row}) + 1) * longest <= self.max_cells else None

    def plan(self, wants: Mapping[int, Want]) -> list[list[Part]]:
        """Return the passes of a step: for each, the rows in it and how much of what they want each is fed.

        Rows that got nothing in the last step come first, those that have waited longest before the others; then
        rows in the middle of their output, and then prompts, in the order in which they got their rows. The budget
        cuts the last of them, whether it is a prompt or a draft.
        """
        running = [key for key in self._rows if key in wants]
        left = self.token_budget
        parts = []
        for key in sorted(running, key=lambda key: (-self._num_waited[key], wants[key].is_prefill)):
            num_tokens = min(wants[key].num_tokens, left)
            left -= num_tokens
            self._num_waited[key] = 0 if num_tokens else self._num_waited[key] + 1
            if num_tokens:
                parts.append(Part(key, num_tokens))
        return grouped(parts, self.max_padding)


def grouped(parts: Sequence[Part], max_padding: int | None) -> list[list[Part]]:
    """Share parts out among passes, longest first, so that each is padded by at most ``max_padding`` tokens."""
    if max_padding is None:
        return [list(parts)] if parts else []
    passes: list[list[Part]] = []
    padding = 0
    for part in sorted(parts, key=lambda part: -part.num_tokens):
        if passes:
            padding += passes[-1][0].num_tokens - part.num_tokens
        if not passes or padding > max_padding:
            passes.append([])
            padding = 0
        passes[-1].append(part)
    return passes
