"""Compiling a grammar for a vocabulary, once however many requests share it."""

from __future__ import annotations

import os
from threading import Lock
from weakref import WeakKeyDictionary

import xgrammar

from jumpforward.grammar.spec import Grammar
from jumpforward.matching.pushdown import CompiledGrammar
from jumpforward.vocab.vocabulary import Vocabulary

_CACHE_BYTES = 1 << 30


class GrammarCompiler:
    """Compiles grammars for one vocabulary.

    xgrammar caches by the grammar's rules, so that two grammars written alike share the work; the
    same :class:`Grammar` object is not even printed again.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        # Ids without bytes are special to xgrammar: never legal, save as the end of the output.
        info = xgrammar.TokenizerInfo(
            list(vocabulary.token_bytes),
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.width,
            stop_token_ids=list(vocabulary.end_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=os.cpu_count() or 1, cache_limit_bytes=_CACHE_BYTES)
        self._tokens: WeakKeyDictionary[Grammar, xgrammar.CompiledGrammar] = WeakKeyDictionary()
        self._lock = Lock()

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Return the grammar compiled for the vocabulary."""
        with self._lock:
            tokens = self._tokens.get(grammar)
            if tokens is None:
                tokens = self._tokens[grammar] = self._compiler.compile_grammar(grammar.rules)
        return CompiledGrammar(grammar, self.vocabulary, tokens)
