"""The loop over many requests: one cache, one row a request, a step at a time in the caller's thread.

A step drops what was cancelled, gives free rows to requests that are ready, prepares every run, and makes the passes
that the scheduler plans. What goes wrong in one request ends that request. What goes wrong in a pass ends those in
it, save that a pass without room in memory is made again with half the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, wait
from contextlib import contextmanager

import torch

from jumpforward.engine import failures
from jumpforward.engine.cache import KVCache
from jumpforward.engine.limits import Limits
from jumpforward.engine.passes import ask
from jumpforward.engine.prefixes import MIN_TOKENS, PrefixCache, num_common
from jumpforward.engine.result import Result
from jumpforward.engine.run import Run
from jumpforward.engine.runner import Row, Runner, SequenceCache
from jumpforward.engine.scheduler import Part, Scheduler, Want
from jumpforward.engine.task import Task
from jumpforward.errors import RequestTooLongError

_LEAST_PADDING, _MOST_PADDING = 8, 512  # tokens of a pass, where nothing else is asked for
_RECOVERY_STEPS = 64  # without a failure, until a budget that was halved is doubled again


class Loop:
    """Steps requests to their ends."""

    def __init__(
        self,
        runner: Runner,
        limits: Limits,
        *,
        num_rows: int,
        prefixes: PrefixCache | None = None,
    ) -> None:
        """Make an idle loop. Models that need a cache of their own kind get one row, whatever ``num_rows`` says."""
        self._runner = runner
        self._prefixes = prefixes if prefixes is not None and prefixes.is_enabled else None
        self._limits = limits
        max_bytes, own_row = limits.max_cache_bytes, runner.no_rollback_reason is not None
        max_cells = max_bytes // runner.bytes_per_token if max_bytes is not None and not own_row else None
        self._scheduler = Scheduler(
            1 if own_row else num_rows,
            token_budget=limits.token_budget,
            max_padding=None if runner.packs else limits.max_padding,
            max_cells=max_cells,
        )
        self._cache: SequenceCache = runner.new_cache(self._scheduler.num_rows, max_cells=max_cells)
        self._num_joined = 0
        self._num_clean_steps = 0
        self._tasks: dict[int, Task] = {}  # all that have not ended, in the order of arrival
        self._unready: dict[int, Task] = {}
        self._running: dict[int, tuple[Task, Run]] = {}  # in the order in which they got their rows

    @property
    def is_idle(self) -> bool:
        """Whether every task has ended."""
        return not self._tasks

    @property
    def tasks(self) -> list[Task]:
        """The tasks that have not ended, in the order of arrival."""
        return list(self._tasks.values())

    def add(self, task: Task) -> None:
        """Take in a task. One that can never fit into the cache ends at once."""
        key = self._num_joined
        self._num_joined += 1
        request = task.request
        length = min(len(request.prompt_ids) + request.max_new_tokens, self._runner.max_length)
        self._tasks[key] = self._unready[key] = task
        self._scheduler.join(key, length)
        if not self._scheduler.fits(length):
            self._end(key, self._too_long(task, length))

    def _too_long(self, task: Task, length: int) -> RequestTooLongError:
        most, len_prompt = self._scheduler.max_cells or 0, len(task.request.prompt_ids)
        advice = f"max_new_tokens={most - len_prompt}" if most > len_prompt else "a shorter prompt"
        return RequestTooLongError(
            f"a prompt of {len_prompt} tokens and max_new_tokens={task.request.max_new_tokens} need a cache of "
            f"{length} tokens or {length * self._runner.bytes_per_token} bytes, and max_cache_bytes="
            f"{self._limits.max_cache_bytes} has room for {most}: {advice} would fit",
            length,
            most,
        )

    @property
    def is_waiting_for_grammars(self) -> bool:
        """Whether a step would do nothing until a grammar is compiled."""
        return bool(self._unready) and len(self._unready) == len(self._tasks)

    def wait(self) -> None:
        """Wait for a grammar if a step would do nothing else."""
        if self.is_waiting_for_grammars:
            wait([task.compiled for task in self._unready.values()], return_when=FIRST_COMPLETED)

    @torch.inference_mode()
    def step(self) -> None:
        """Go on by one step. It is short if no request is ready."""
        self.admit()
        wants = self._wants()
        if self._limits.max_padding is None and not self._runner.packs:
            self._scheduler.max_padding = self._padding_for_a_pass()
        for parts in self._scheduler.plan(wants):
            if not self._pass(parts):
                break  # the rest of the plan was for another budget
        else:
            self._recover()

    def _padding_for_a_pass(self) -> int:
        """Return how many tokens of padding cost about as much as another pass, by what passes have taken so far."""
        cost = next((run.costs.now for _, run in self._running.values()), None)
        if cost is None or cost.row_s * _MOST_PADDING <= cost.pass_s:
            return _MOST_PADDING
        return max(_LEAST_PADDING, int(cost.pass_s / cost.row_s))

    def admit(self) -> None:
        """Drop what was cancelled, and give free rows to requests that are ready: how a step begins."""
        for key, task in list(self._tasks.items()):
            if task.is_cancelled:
                self._end(key, CancelledError())
        self._find_ready()
        for key, row in self._scheduler.admit():
            with self._fault_of(key):
                self._start(key, row)

    def _find_ready(self) -> None:
        for key, task in list(self._unready.items()):
            if task.compiled.done():
                task.counters.lap("compile")
                with self._fault_of(key):
                    task.compiled.result()
                    del self._unready[key]
                    self._scheduler.make_ready(key)

    @torch.inference_mode()
    def _start(self, key: int, index: int) -> None:
        task = self._tasks[key]
        task.counters.lap("wait")
        if isinstance(self._cache, KVCache):
            self._cache.clear(index)
            row = Row(self._cache, index)
        else:
            row = Row(self._runner.new_cache())
        self._running[key] = task, task.start(row)
        task.changed()

    def _wants(self) -> dict[int, Want]:
        """Prepare every run; return what each wants to be fed. Those that have finished end."""
        wants = {}
        for key, (_, run) in list(self._running.items()):
            with self._fault_of(key):
                run.num_sharing = len(self._running)
                num_tokens = run.prepare()
                if not num_tokens:
                    self._end(key, run.result())
                elif not self._reuses_later(key, run):
                    whole = self._runner.takes_chunk(run.row.length)
                    wants[key] = Want(run.prepare() if whole else 1, run.is_prefill)
        return wants

    def _reuses_later(self, key: int, run: Run) -> bool:
        """Copy the longest known beginning into an empty row; return whether to wait for a longer one instead.

        That is one which a request before this is being fed just now.
        """
        cache = run.row.cache
        if self._prefixes is None or run.row.length or not isinstance(cache, KVCache):
            return False
        ids = run.sequence.prompt_ids
        match = self._prefixes.longest(ids)
        for other, (_, ahead) in self._running.items():
            if other == key:
                break
            if ahead.is_prefill and num_common(ahead.sequence.prompt_ids, ids[:-1]) >= match.num_tokens + MIN_TOKENS:
                return True
        if match.num_tokens:
            cache.write(run.row.index, match.num_tokens, match.states)
            run.counters.num_reused_tokens = match.num_tokens
        return False

    def _pass(self, parts: Sequence[Part]) -> bool:
        """Make one pass, and settle those in it; return False if it had no room and is to be planned anew."""
        chosen = sorted(((self._running[part.key][1], part) for part in parts), key=lambda pair: pair[0].row.index)
        prefilling = [run.is_prefill for run, _ in chosen]
        try:
            answers = ask(self._runner, [run for run, _ in chosen], [part.num_tokens for _, part in chosen])
        except Exception as error:
            return self._pass_failed(parts, error)
        for (run, part), answer, was_prefill in zip(chosen, answers, prefilling, strict=True):
            with self._fault_of(part.key):
                if was_prefill and not run.is_prefill:
                    self._keep_prompt(run)
                run.take(*answer)
                if run.is_finished:
                    self._end(part.key, run.result())
                else:
                    self._tasks[part.key].changed()
        return True

    def _keep_prompt(self, run: Run) -> None:
        cache, ids = run.row.cache, run.sequence.prompt_ids
        if self._prefixes is not None and isinstance(cache, KVCache):
            self._prefixes.keep(ids, lambda: cache.read(run.row.index, len(ids)))

    def _pass_failed(self, parts: Sequence[Part], error: Exception) -> bool:
        """End those in a pass; or, if it had no room and can be made smaller, return False and have it planned anew."""
        num_tokens = sum(part.num_tokens for part in parts)
        if is_out_of_memory(error) and num_tokens > 1 and self._runner.no_rollback_reason is None:
            self._scheduler.token_budget = num_tokens // 2
            self._num_clean_steps = 0
            return False
        for part in parts:
            text = self._running[part.key][1].text
            self._end(part.key, failures.no_room(text, error) if is_out_of_memory(error) else error)
        return True

    def _recover(self) -> None:
        """Count a step without a failure; after some, raise a budget that was lowered."""
        self._num_clean_steps += 1
        if self._num_clean_steps % _RECOVERY_STEPS == 0:
            self._scheduler.token_budget = min(self._limits.token_budget, 2 * self._scheduler.token_budget)

    @contextmanager
    def _fault_of(self, key: int) -> Iterator[None]:
        """End a request with the exception that the block raises, and nobody else."""
        try:
            yield
        except Exception as error:
            self._end(key, error)

    def _end(self, key: int, outcome: Result | Exception) -> None:
        """Forget a task, free its row, and tell it."""
        self._scheduler.leave(key)
        self._unready.pop(key, None)
        _, run = self._running.pop(key, (None, None))
        if run is not None:
            run.close()
            if isinstance(run.row.cache, KVCache):
                run.row.crop(0)
        self._tasks.pop(key).end(outcome)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an exception says that memory was short: PyTorch has no type of its own for that on a CPU."""
    said_by_cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator: " in str(error)
    return said_by_cpu or isinstance(error, torch.OutOfMemoryError | MemoryError)
