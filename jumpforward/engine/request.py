"""What one request asks for, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from jumpforward.decoding.policy import Policy
from jumpforward.decoding.sampling import SamplingOptions
from jumpforward.engine.prompt import Prompt
from jumpforward.errors import OptionError
from jumpforward.grammar.spec import Grammar
from jumpforward.matching.automaton import CompiledAutomaton
from jumpforward.matching.compiler import Compiled
from jumpforward.matching.completing import CompletingMatcher
from jumpforward.matching.lasting import LastingMatcher
from jumpforward.matching.matcher import Matcher

if TYPE_CHECKING:
    import torch

    # The output so far and the logits behind it, shape (width,), to the logits among which the mask then chooses.
    LogitsProcessor = Callable[[Sequence[int], torch.Tensor], torch.Tensor]


class SamplingArguments(TypedDict, total=False):
    """How a token is drawn; the fields of :class:`jumpforward.decoding.sampling.SamplingOptions`."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None


class GenerationOptions(SamplingArguments, total=False):
    """What a call of ``generate`` or ``stream`` may say besides prompt and grammar.

    Attributes:
        policy: ``"exact"`` (default), ``"canonical"``, ``"retokenize"`` or ``"masked"``; see the README.
        max_new_tokens: the most tokens that the output has, an end token included; 256 by default.
        min_new_tokens: how many tokens there are in front of an end token, at least. An output that must end before
            is an error.
        temperature: 0 (default) takes the likeliest legal token; above, tokens are drawn.
        top_k: draw among the likeliest ``top_k`` legal tokens.
        top_p: draw among the likeliest legal tokens that together have this probability.
        min_p: draw among legal tokens with at least this share of the likeliest one's probability.
        seed: the same seed gives the same tokens, in ``masked`` and ``exact`` alike; by default a new one.
        stop: end in front of the first of these strings.
        ensure_complete: permit only tokens behind which the output can still be completed within
            ``max_new_tokens``; for regular grammars.
        heal: take back the prompt's last tokens, as far as the output's first bytes could merge with them, and have the
            model write their text again in front of the output.
        logprobs: also return the model's own log-probability of every token.
    """

    policy: str
    max_new_tokens: int
    min_new_tokens: int
    stop: str | Sequence[str] | None
    ensure_complete: bool
    heal: bool
    logprobs: bool


class GenerationRequest(GenerationOptions):
    """One request of :meth:`jumpforward.Engine.generate_batch`: the arguments of one call of ``generate``."""

    prompt: Prompt
    grammar: Grammar


@dataclass(frozen=True, eq=False)
class Request:
    """A checked request.

    ``healed`` is the text of tokens that were taken back from the prompt's end; the output begins with it.
    ``processor`` changes the logits of a position before they are masked. It is also asked about drafts.

    Raises:
        OptionError: an option has a value that means nothing.
    """

    prompt_ids: tuple[int, ...]
    grammar: Grammar
    policy: Policy
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    max_new_tokens: int = 256
    stop: tuple[bytes, ...] = ()
    logprobs: bool = False
    ensure_complete: bool = False
    healed: str = ""
    min_new_tokens: int = 0
    processor: LogitsProcessor | None = None

    @property
    def matched(self) -> Grammar:
        """What the output's tokens are matched against: the grammar, behind the text of the prompt that was healed."""
        return self.grammar.behind(self.healed) if self.healed else self.grammar

    def matcher(self, compiled: Compiled, max_new_tokens: int) -> Matcher:
        """Return the request's matcher.

        Raises:
            OptionError: a complete output is to be ensured, and the grammar's shortest is not known, or has no room.
        """
        matcher = self._completing(compiled, max_new_tokens) if self.ensure_complete else compiled.matcher()
        if not self.min_new_tokens:
            return matcher
        return LastingMatcher(matcher, self.min_new_tokens, compiled.vocabulary.end_ids)

    def _completing(self, compiled: Compiled, max_new_tokens: int) -> CompletingMatcher:
        if not isinstance(compiled, CompiledAutomaton):
            raise OptionError(
                "ensure_complete", True, "a regular grammar (regex or choice) that fits into an automaton"
            )
        fewest = compiled.fewest_tokens
        if fewest is not None and max_new_tokens < fewest:
            raise OptionError("max_new_tokens", max_new_tokens, f"at least {fewest}, for the shortest complete output")
        return CompletingMatcher(compiled.matcher(), max_new_tokens)

    def __post_init__(self) -> None:
        """Check what the other types do not."""
        if not isinstance(self.grammar, Grammar):
            raise OptionError("grammar", self.grammar, "a grammar, as jf.json_schema(...) or jf.regex(...) make")
        for name, least in (("max_new_tokens", 1), ("min_new_tokens", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise OptionError(name, value, f"a whole number of at least {least}")
            if value < least:
                raise OptionError(name, value, f"at least {least}")
        if self.min_new_tokens > self.max_new_tokens:
            raise OptionError("min_new_tokens", self.min_new_tokens, f"at most max_new_tokens={self.max_new_tokens}")


def stop_bytes(stop: str | Sequence[str] | None) -> tuple[bytes, ...]:
    """Return the stop strings as bytes; OptionError for anything but strings with something in them."""
    strings = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, Sequence) or not all(isinstance(string, str) and string for string in strings):
        raise OptionError("stop", stop, "a string that is not empty, or several")
    try:
        return tuple(string.encode() for string in strings)
    except UnicodeEncodeError as error:
        raise OptionError("stop", stop, f"text that UTF-8 can write ({error.reason})") from error
