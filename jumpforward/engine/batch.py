"""A list of requests, run to the end of the last in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from jumpforward.engine.loop import Loop
from jumpforward.engine.result import Result
from jumpforward.engine.task import Task
from jumpforward.errors import BatchError, JumpForwardError


def run_batch(
    loop: Loop, tasks: Sequence[Task | JumpForwardError], *, progress: bool, return_errors: bool
) -> list[Result | Exception]:
    """Return what comes of each task; see :meth:`jumpforward.Engine.generate_batch`."""
    for task in tasks:
        if isinstance(task, Task):
            loop.add(task)
    with _shown(len(tasks), progress) as show:
        while not loop.is_idle:
            loop.wait()
            loop.step()
            show(len(tasks) - len(loop.tasks))
    outcomes = [_outcome(task) for task in tasks]
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if failures and not return_errors:
        raise BatchError(
            f"{len(failures)} of {len(outcomes)} requests failed, the first with {type(failures[0]).__name__}: "
            f"{failures[0]}; pass return_errors=True to get exceptions in the places of results",
            outcomes,
        ) from failures[0]
    return outcomes


def _outcome(task: Task | JumpForwardError) -> Result | Exception:
    if isinstance(task, JumpForwardError):
        return task
    if task.outcome is None:
        raise RuntimeError("the loop is idle and a task has not ended")
    return task.outcome


@contextmanager
def _shown(num_tasks: int, progress: bool) -> Iterator[Callable[[int], None]]:
    """Give a function that shows how many tasks have ended, on standard error; it does nothing unless asked to."""
    if not progress:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        shown = bar.add_task("requests", total=num_tasks)
        yield lambda num_ended: bar.update(shown, completed=num_ended)
