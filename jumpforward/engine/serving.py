"""What an engine has only when it serves several requests: threads that compile, kept prefixes, a background loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from jumpforward.engine.handle import Handle, ServedTask
from jumpforward.engine.limits import Limits
from jumpforward.engine.loop import Loop
from jumpforward.engine.prefixes import PrefixCache
from jumpforward.engine.request import Request
from jumpforward.engine.runner import Runner
from jumpforward.engine.service import Service, closed_error
from jumpforward.engine.task import NewRun
from jumpforward.grammar.spec import Grammar
from jumpforward.matching.compiler import Compiled, CompilerPool, GrammarCompiler
from jumpforward.stats import Counters

_COMPILER_THREADS = 4  # so that a few slow grammars do not hold up the others


class Serving:
    """Loops over several requests that share grammars and prefixes.

    Attributes:
        prefixes: the kept beginnings of prompts.
    """

    def __init__(self, runner: Runner, compiler: GrammarCompiler, limits: Limits) -> None:
        self.prefixes = PrefixCache(limits.prefix_cache_bytes, runner.bytes_per_token)
        self._runner = runner
        self._is_closed = False
        self._compilers = CompilerPool(compiler, _COMPILER_THREADS)
        self._service = Service(lambda: self.new_loop(limits), limits.max_waiting)

    def new_loop(self, limits: Limits, *, shares: bool = True) -> Loop:
        """Return an idle loop over a cache of its own, and, unless it ``shares``, over prefixes of its own."""
        own = PrefixCache(limits.prefix_cache_bytes, self._runner.bytes_per_token)
        return Loop(self._runner, limits, num_rows=limits.batch_size, prefixes=self.prefixes if shares else own)

    def compile(self, grammar: Grammar) -> Future[Compiled]:
        """Have a grammar compiled by another thread.

        Raises:
            EngineClosedError: the engine is closed.
        """
        if self._is_closed:
            raise closed_error()
        return self._compilers.start(grammar)

    def submit(self, request: Request, new_run: NewRun) -> Handle:
        """Run a request in the background; block while too many wait."""
        counters = Counters()
        slot = self._service.slots.take()
        try:
            slot.result()
            return self._begin(request, counters, new_run)
        except BaseException:
            self._give_back(slot)
            raise

    async def submit_async(self, request: Request, new_run: NewRun) -> Handle:
        """Run a request in the background; wait while too many wait."""
        counters = Counters()
        slot = self._service.slots.take()
        try:
            await asyncio.wrap_future(slot)
            return self._begin(request, counters, new_run)
        except BaseException:
            self._give_back(slot)
            raise

    def _begin(self, request: Request, counters: Counters, new_run: NewRun) -> Handle:
        counters.lap("wait")
        service = self._service
        task = ServedTask(
            request,
            self.compile(request.matched),
            counters,
            new_run,
            wake=service.wake,
            admitted=service.slots.give,
        )
        handle = Handle(task)
        service.submit(task)
        return handle

    def _give_back(self, slot: Future[None]) -> None:
        """Give up a slot, or the wait for one."""
        if not slot.cancel() and slot.exception() is None:
            self._service.slots.give()

    def close(self) -> None:
        """End what is in the background, and stop the threads."""
        self._is_closed = True
        self._service.close()
        self._compilers.close()
