"""From the arguments of a call to a task: checked, its grammar compiled or on its way."""

from __future__ import annotations

from concurrent.futures import Future

from jumpforward.engine.intake import Intake
from jumpforward.engine.prompt import Prompt
from jumpforward.engine.request import GenerationOptions, GenerationRequest
from jumpforward.engine.serving import Serving
from jumpforward.engine.task import NewRun, Task
from jumpforward.errors import JumpForwardError
from jumpforward.grammar.spec import Grammar
from jumpforward.matching.compiler import Compiled, GrammarCompiler
from jumpforward.stats import Counters


class TaskMaker:
    """Makes the tasks of one engine, which is not held by it: a cycle would keep its model until it is collected."""

    def __init__(self, intake: Intake, compiler: GrammarCompiler, serving: Serving) -> None:
        self._intake = intake
        self._compiler = compiler
        self._serving = serving

    def alone(self, new_run: NewRun, prompt: Prompt, grammar: Grammar, options: GenerationOptions) -> Task:
        """Return a task whose grammar this thread has compiled."""
        counters = Counters()
        request = self._intake.request(prompt, grammar, **options)
        counters.lap("prompt")
        compiled: Future[Compiled] = Future()
        compiled.set_result(self._compiler.compile(request.matched))
        return Task(request, compiled, counters, new_run)

    def of_batch(self, new_run: NewRun, arguments: GenerationRequest) -> Task | JumpForwardError:
        """Return a request of a batch, or why it is none."""
        counters = Counters()
        try:
            request = self._intake.request(**arguments)
        except JumpForwardError as error:
            return error
        counters.lap("prompt")
        return Task(request, self._serving.compile(request.matched), counters, new_run)
