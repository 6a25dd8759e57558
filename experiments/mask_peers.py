"""The matchers that mask_cost.py compares, behind one small interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import xgrammar

import jumpforward as jf
from jumpforward.matching.automaton import CompiledAutomaton, automaton_for
from jumpforward.vocab.vocabulary import Vocabulary


class Kind(Protocol):
    """A kind of matcher: work once for a vocabulary, once for a pattern, and one mask for a token."""

    name: str
    is_own: bool  # comes with this package's own dependencies

    def setup(self, vocabulary: Vocabulary) -> Any: ...

    def compile(self, shared: Any, pattern: str) -> Any: ...

    def again(self, compiled: Any) -> Any:
        """Compile a pattern that has been compiled, as a server would for the next request."""
        ...

    def walk(self, compiled: Any, ids: Sequence[int]) -> float:
        """Return the mean seconds of a mask, without the consuming in between."""
        ...


def tokenizer_info(vocabulary: Vocabulary) -> xgrammar.TokenizerInfo:
    """Return xgrammar's form of a vocabulary."""
    raw = xgrammar.VocabType.RAW
    ends = list(vocabulary.end_ids)
    return xgrammar.TokenizerInfo(list(vocabulary.token_bytes), raw, vocab_size=vocabulary.width, stop_token_ids=ends)


def _mean_fill(fill: Any, consume: Any, ids: Sequence[int]) -> float:
    total_s = 0.0
    for token in ids:
        start = perf_counter()
        fill()
        total_s += perf_counter() - start
        consume(token)
    return total_s / len(ids)


@dataclass
class Automaton:
    """This package's token index."""

    name: str = "automaton"
    is_own: bool = True

    def setup(self, vocabulary: Vocabulary) -> Vocabulary:
        _ = vocabulary.trie  # built on first use
        return vocabulary

    def compile(self, shared: Vocabulary, pattern: str) -> CompiledAutomaton:
        compiled = automaton_for(jf.regex(pattern), shared)
        if isinstance(compiled, str):
            raise TypeError(compiled)
        return compiled

    def again(self, compiled: Any) -> Any:
        return compiled.matcher()

    def walk(self, compiled: CompiledAutomaton, ids: Sequence[int]) -> float:
        matcher, bitmask = compiled.matcher(), xgrammar.allocate_token_bitmask(1, compiled.vocabulary.width)
        return _mean_fill(lambda: matcher.fill_bitmask(bitmask, 0), matcher.consume, ids)


@dataclass
class XGrammar:
    """xgrammar's compiler and matcher, as this package uses them for other grammars."""

    name: str = "xgrammar"
    is_own: bool = True

    def setup(self, vocabulary: Vocabulary) -> Any:
        return tokenizer_info(vocabulary)

    def compile(self, shared: Any, pattern: str) -> Any:
        return xgrammar.GrammarCompiler(shared, cache_enabled=False).compile_regex(pattern)

    def again(self, compiled: Any) -> Any:
        return xgrammar.GrammarMatcher(compiled)

    def walk(self, compiled: Any, ids: Sequence[int]) -> float:
        matcher = xgrammar.GrammarMatcher(compiled)
        bitmask = xgrammar.allocate_token_bitmask(1, compiled.tokenizer_info.vocab_size)
        return _mean_fill(lambda: matcher.fill_next_token_bitmask(bitmask), matcher.accept_token, ids)


@dataclass
class LLGuidance:
    """llguidance: no index; every mask walks the token trie."""

    name: str = "llguidance"
    is_own: bool = False

    def setup(self, vocabulary: Vocabulary) -> Any:
        import llguidance
        from llguidance._tokenizer import TokenizerWrapper

        end = vocabulary.end_ids[0]
        tokens = [token or f"<|special {index}|>".encode() for index, token in enumerate(vocabulary.token_bytes)]
        singles = {token: index for index, token in enumerate(vocabulary.token_bytes) if len(token) == 1}

        class Pieces:
            eos_token_id, bos_token_id = end, None
            special_token_ids = sorted(vocabulary.special_ids)

            def __call__(self, text: bytes) -> list[int]:
                return [singles[bytes([byte])] for byte in text]

        pieces = Pieces()
        pieces.tokens = tokens
        return llguidance.LLTokenizer(TokenizerWrapper(pieces))

    def compile(self, shared: Any, pattern: str) -> Any:
        from llguidance import LLMatcher

        return LLMatcher(shared, LLMatcher.grammar_from_regex(pattern)), shared

    def again(self, compiled: Any) -> Any:
        return compiled[0].deep_copy()

    def walk(self, compiled: Any, ids: Sequence[int]) -> float:
        import llguidance.numpy as masks

        matcher, bitmask = compiled[0].deep_copy(), masks.allocate_token_bitmask(1, compiled[1].vocab_size)
        return _mean_fill(lambda: masks.fill_next_token_bitmask(matcher, bitmask), matcher.consume_token, ids)


@dataclass
class OutlinesCore:
    """outlines-core's index over automaton states. Some patterns lose legal tokens there: ``ab(cde)?`` its ``c``."""

    name: str = "outlines-core"
    is_own: bool = False

    def setup(self, vocabulary: Vocabulary) -> Any:
        import outlines_core

        ids: dict[bytes, list[int]] = {}
        for index, token in enumerate(vocabulary.token_bytes):
            if token:
                ids.setdefault(token, []).append(index)
        return outlines_core.Vocabulary(vocabulary.end_ids[0], ids), vocabulary.width

    def compile(self, shared: Any, pattern: str) -> Any:
        import outlines_core

        return outlines_core.Index(pattern, shared[0]), shared[1]

    def again(self, compiled: Any) -> Any:
        import outlines_core

        return outlines_core.Guide(compiled[0])

    def walk(self, compiled: Any, ids: Sequence[int]) -> float:
        import outlines_core

        guide, mask = outlines_core.Guide(compiled[0]), xgrammar.allocate_token_bitmask(1, compiled[1])
        size = mask.numel() * mask.element_size()

        def fill() -> None:
            guide.write_mask_into(mask.data_ptr(), mask.numel(), size // mask.numel())

        return _mean_fill(fill, lambda token: guide.advance(token, return_tokens=False), ids)


PEERS: tuple[Kind, ...] = (Automaton(), XGrammar(), LLGuidance(), OutlinesCore())
