"""Compiling a grammar for a vocabulary, once however many requests share it."""

from __future__ import annotations

import os
from functools import lru_cache
from threading import Lock
from weakref import WeakKeyDictionary

import xgrammar

from jumpforward.grammar.dfa import Dfa
from jumpforward.grammar.spec import Grammar
from jumpforward.matching.automaton import CompiledAutomaton, index_of
from jumpforward.matching.pushdown import CompiledGrammar
from jumpforward.matching.token_index import TokenIndex
from jumpforward.vocab.vocabulary import Vocabulary

_CACHED_GRAMMARS = 256


class GrammarCompiler:
    """Compiles grammars for one vocabulary.

    Regular grammars become an automaton with a token index where that stays within limits; all others are
    xgrammar's. The same rules are compiled once as long as they are among the last few hundred.
    """

    def __init__(self, vocabulary: Vocabulary, *, automata: bool = True) -> None:
        self.vocabulary = vocabulary
        # Ids without bytes are special to xgrammar: never legal, save as the end of the output.
        info = xgrammar.TokenizerInfo(
            list(vocabulary.token_bytes),
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.width,
            stop_token_ids=list(vocabulary.end_ids),
        )
        # xgrammar's own cache prints the rules and parses them again, and reads a printed `\xe9` in front of an `e` as
        # one character with four digits: `idée` becomes another word.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=os.cpu_count() or 1, cache_enabled=False)
        self._compiled = lru_cache(maxsize=_CACHED_GRAMMARS)(self._compile_rules)
        self._automata = automata
        # Neither value refers to its key, so that a grammar which nobody uses any more is let go.
        self._indexes: WeakKeyDictionary[Grammar, tuple[Dfa, TokenIndex] | str] = WeakKeyDictionary()
        self._tokens: WeakKeyDictionary[Grammar, xgrammar.CompiledGrammar] = WeakKeyDictionary()
        self._lock = Lock()

    def compile(self, grammar: Grammar) -> CompiledAutomaton | CompiledGrammar:
        """Return the grammar compiled for the vocabulary, as an automaton where it can be one."""
        automaton = self.automaton(grammar)
        return self.pushdown(grammar) if isinstance(automaton, str) else automaton

    def automaton(self, grammar: Grammar) -> CompiledAutomaton | str:
        """Return the grammar as an automaton with a token index, or why it is none."""
        if not self._automata:
            return "automata are switched off"
        with self._lock:
            found = self._indexes.get(grammar)
            if found is None:
                found = self._indexes[grammar] = index_of(grammar, self.vocabulary)
        return found if isinstance(found, str) else CompiledAutomaton(grammar, self.vocabulary, *found)

    def pushdown(self, grammar: Grammar) -> CompiledGrammar:
        """Return the grammar compiled by xgrammar."""
        with self._lock:
            tokens = self._tokens.get(grammar)
            if tokens is None:
                tokens = self._tokens[grammar] = self._compiled(grammar.rules.serialize_json())
        return CompiledGrammar(grammar, self.vocabulary, tokens)

    def _compile_rules(self, rules: str) -> xgrammar.CompiledGrammar:
        return self._compiler.compile_grammar(xgrammar.Grammar.deserialize_json(rules))
