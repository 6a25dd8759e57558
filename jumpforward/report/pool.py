"""Rows measured in processes of their own, each on one thread, and given up after a time limit.

A process and not a thread for two reasons: walking is Python, and a schema on which xgrammar runs on and on, or runs
out of memory, can only be stopped together with its process. What is left then is a result that says so.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from jumpforward.errors import TokenizerError
from jumpforward.report.corpus import Row
from jumpforward.report.results import SchemaResult
from jumpforward.report.settings import Options

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
_READY = "ready"


@dataclass
class _Worker:
    """A process, and the row that it works on."""

    process: BaseProcess
    connection: Connection
    row: Row | None = None
    deadline_s: float = float("inf")
    is_ready: bool = False

    def give(self, row: Row, time_limit_s: float) -> None:
        self.row = row
        self.deadline_s = time.monotonic() + time_limit_s
        self.connection.send(row)

    def stop(self) -> int | None:
        """End the process, and return its exit code."""
        self.process.kill()
        self.process.join()
        self.connection.close()
        return self.process.exitcode


def measured(rows: Iterable[Row], options: Options, num_jobs: int) -> Iterator[SchemaResult]:
    """Yield the results of rows, in the order in which they are ready. All processes have ended afterwards.

    Raises:
        TokenizerError: a tokenizer cannot be used.
    """
    waiting = iter(rows)
    workers = [_start(options) for _ in range(num_jobs)]
    try:
        while workers:
            for worker in _stirring(workers):
                yield from _serve(worker, workers, waiting, options)
    finally:
        for worker in workers:
            worker.stop()


def _start(options: Options) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, options), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _stirring(workers: list[_Worker]) -> list[_Worker]:
    """Wait, and return the workers that sent something, ended, or have had their time."""
    left_s = min(worker.deadline_s for worker in workers) - time.monotonic()
    ready = wait([worker.connection for worker in workers], None if left_s == float("inf") else max(0.0, left_s))
    now_s = time.monotonic()
    return [worker for worker in workers if worker.connection in ready or worker.deadline_s <= now_s]


def _serve(worker: _Worker, workers: list[_Worker], waiting: Iterator[Row], options: Options) -> Iterator[SchemaResult]:
    """Take what a worker has, and give it the next row; a worker that is lost is replaced."""
    row = worker.row
    message = _received(worker)
    if isinstance(message, SchemaResult):
        yield message
    elif isinstance(message, Exception):
        raise message
    elif message != _READY:
        workers.remove(worker)
        code = worker.stop()
        if row is None:
            raise TokenizerError(f"a process that was to load the tokenizers ended with exit code {code}")
        problem = f"given up after {options.time_limit_s:g} s" if message is None else f"its process ended ({code})"
        yield _problem(row, problem)
        workers.append(_start(options))
        return
    for following in waiting:
        try:
            worker.give(following, options.time_limit_s)
        except RecursionError:  # JSON can be read that is nested too deeply to be sent
            yield _problem(following, "nested too deeply")
        else:
            return
    workers.remove(worker)
    worker.stop()


def _received(worker: _Worker) -> Any:
    """Return a worker's message; None where there is none within its time, an empty text where it has ended."""
    if not worker.connection.poll():
        return None
    try:
        return worker.connection.recv()
    except (EOFError, ConnectionError):
        worker.process.join()
        return ""


def _work(connection: Connection, options: Options) -> None:
    """Measure the rows that come, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    os.environ |= dict.fromkeys(_THREADS, "1")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stderr__.fileno() if sys.__stderr__ else 2)
    try:
        tokens = _tokens(options)
    except Exception as error:
        connection.send(TokenizerError(str(error)))
        return
    connection.send(_READY)
    while True:
        try:
            row: Row = connection.recv()
        except EOFError:  # the parent is gone
            return
        connection.send(_result(row, options, tokens))


def _tokens(options: Options) -> dict[str, Any]:
    import torch
    import xgrammar  # noqa: F401  (now, and not within the first row's time)

    import jumpforward.report.measure  # noqa: F401  (likewise)
    from jumpforward.engine.pretrained import load_tokenizer
    from jumpforward.report.overlay import Tokens

    torch.set_num_threads(1)
    return {name: Tokens(load_tokenizer(None if name == "default" else name)) for name in options.tokenizers}


def _result(row: Row, options: Options, tokens: dict[str, Any]) -> SchemaResult:
    """Return a row's result. An error that nobody foresaw is a result too: hours of others must not be lost by it."""
    from jumpforward.report.measure import measure

    try:
        return measure(row, options, tokens)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}, line {where.lineno})"
        return _problem(row, problem)


def _problem(row: Row, problem: str) -> SchemaResult:
    return SchemaResult(index=row.index, id=row.id, group=row.group, problem=problem)
