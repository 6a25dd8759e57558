"""A request on its way through a loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from jumpforward.engine.request import Request
from jumpforward.engine.result import Result
from jumpforward.engine.run import Run
from jumpforward.engine.runner import Row
from jumpforward.engine.sequence import Sequence
from jumpforward.matching.compiler import Compiled
from jumpforward.stats import Counters

NewRun = Callable[[Request, Compiled, Counters, Row], Run]


class Task:
    """A request on its way through a loop.

    Attributes:
        request: what is asked for.
        compiled: its grammar, which may be on its way.
        counters: its account.
        run: its state, from when it has a row.
        outcome: its result, or the exception that ended it; None while it goes on.
        is_cancelled: set this, from any thread, to have the next step drop it.
        is_admitted: whether it no longer waits: it has a row, or has ended.
    """

    def __init__(self, request: Request, compiled: Future[Compiled], counters: Counters, new_run: NewRun) -> None:
        self.request = request
        self.compiled = compiled
        self.counters = counters
        self._new_run = new_run
        self.run: Run | None = None
        self.outcome: Result | Exception | None = None
        self.is_cancelled = False
        self.is_admitted = False

    def start(self, row: Row) -> Run:
        """Make the run, in an empty row; the grammar is compiled."""
        self.is_admitted = True
        self.run = self._new_run(self.request, self.compiled.result(), self.counters, row)
        return self.run

    def end(self, outcome: Result | Exception) -> None:
        """Take what has become of it."""
        self.is_admitted = True
        self.outcome = outcome
        self.changed()

    @property
    def sequence(self) -> Sequence:
        """Its prompt and output, from when it has a row."""
        if self.run is None:
            raise RuntimeError("the task has no row yet")
        return self.run.sequence

    def changed(self) -> None:
        """Hear of new tokens, of the end, and of leaving the line of those who wait; for subclasses."""

    def result(self) -> Result:
        """Return the result of a task that has ended, or raise what ended it."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.outcome is None:
            raise RuntimeError("the task has not ended")
        return self.outcome
