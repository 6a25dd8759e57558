"""A request that runs in the background, seen from the threads and coroutines that wait for it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any

from jumpforward.engine.request import Request
from jumpforward.engine.result import Result
from jumpforward.engine.task import NewRun, Task
from jumpforward.engine.text import TextStream
from jumpforward.matching.compiler import Compiled
from jumpforward.stats import Counters

# A link gives a piece of text and the next link, or None behind the last piece, or raises what ended the request.
# Threads and coroutines can both wait for a future, and what nobody has read yet hangs on the reader's own link.
Link = Future[Any]


class Handle:
    """A request that was submitted: its text as it is made, and its result.

    An iterator, for threads and for coroutines, over the certain pieces of the text; joined, they are the final text.
    ``await handle`` gives the result. A handle that nobody holds any more cancels its request. What has been made
    and not been read waits in memory: at most the request's ``max_new_tokens``.
    """

    def __init__(self, task: ServedTask) -> None:
        self._result = task.future
        self._link: Link = task.last_link

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result.

        Raises:
            TimeoutError: it was not there after ``timeout`` seconds; the request goes on.
            concurrent.futures.CancelledError: the request was cancelled.
            JumpForwardError: as :meth:`jumpforward.Engine.generate` raises them; EngineClosedError where the engine
                was closed first.
        """
        return self._result.result(timeout)

    def cancel(self) -> bool:
        """Have the request dropped before its next step; return False where it has already ended."""
        return self._result.cancel()

    @property
    def is_done(self) -> bool:
        """Whether the request has ended, with a result or not."""
        return self._result.done()

    def __iter__(self) -> Handle:
        """Return itself."""
        return self

    def __next__(self) -> str:
        """Wait for the next piece, which is not empty. Errors are those of :meth:`result`."""
        piece = self._step(self._link.result())
        if piece is None:
            raise StopIteration
        return piece

    def __aiter__(self) -> Handle:
        """Return itself."""
        return self

    async def __anext__(self) -> str:
        """Wait for the next piece, as :meth:`__next__` does. A piece is not lost where the wait is cancelled."""
        piece = self._step(await asyncio.shield(asyncio.wrap_future(self._link)))
        if piece is None:
            raise StopAsyncIteration
        return piece

    def __await__(self) -> Generator[Any, None, Result]:
        """Wait for the result. Where the wait is cancelled, so is the request."""
        return (yield from asyncio.wrap_future(self._result).__await__())

    def _step(self, linked: tuple[str, Link] | None) -> str | None:
        if linked is None:
            return None
        piece, self._link = linked
        return piece

    def __del__(self) -> None:
        """Cancel a request for which nobody waits any more."""
        self._result.cancel()


class ServedTask(Task):
    """A task that tells a :class:`Handle` of itself, which it does not keep alive.

    Attributes:
        future: its result; cancelling it cancels the task.
        last_link: where the next piece of text will be.
    """

    def __init__(
        self,
        request: Request,
        compiled: Future[Compiled],
        counters: Counters,
        new_run: NewRun,
        *,
        wake: Callable[[], None],
        admitted: Callable[[], None],
    ) -> None:
        """Make a task. ``wake`` is called where its loop has reason to look; ``admitted`` when it waits no more."""
        super().__init__(request, compiled, counters, new_run)
        self.future: Future[Result] = Future()
        self.last_link: Link = Future()
        self._wake = wake
        self._admitted: Callable[[], None] | None = admitted
        self._text: TextStream | None = None
        # A future keeps its callbacks: one that held the task would hold its run, and the model, in a cycle.
        self.future.add_done_callback(partial(_notice_cancelling, weakref.ref(self)))
        compiled.add_done_callback(lambda _: wake())

    def cancel(self) -> None:
        """Have the loop drop the task."""
        self.is_cancelled = True
        self._wake()

    def changed(self) -> None:
        """Pass on new text, and the end."""
        if self.is_admitted and self._admitted is not None:
            self._admitted()
            self._admitted = None
        self._pass_on_text()
        outcome = self.outcome
        if outcome is None:
            return
        is_told = self.future.set_running_or_notify_cancel()
        if isinstance(outcome, Result):
            self.last_link.set_result(None)
            if is_told:
                self.future.set_result(outcome)
        else:
            self.last_link.set_exception(outcome)
            if is_told:
                self.future.set_exception(outcome)

    def _pass_on_text(self) -> None:
        if self.run is None:
            return
        if self._text is None:
            self._text = TextStream(self.run.sequence)
        if piece := self._text.new_text():
            link, self.last_link = self.last_link, Future()
            link.set_result((piece, self.last_link))


def _notice_cancelling(reference: weakref.ref[ServedTask], future: Future[Result]) -> None:
    task = reference()
    if task is not None and future.cancelled():
        task.cancel()
