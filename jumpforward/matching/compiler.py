"""Compiling a grammar for a vocabulary, once however many requests share it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from threading import Lock, get_native_id
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import xgrammar

from jumpforward.grammar.dfa import Dfa
from jumpforward.grammar.spec import Grammar
from jumpforward.matching.automaton import CompiledAutomaton, index_of
from jumpforward.matching.pushdown import CompiledGrammar
from jumpforward.matching.token_index import TokenIndex
from jumpforward.vocab.vocabulary import Vocabulary

Compiled = CompiledAutomaton | CompiledGrammar

T = TypeVar("T")

_CACHED_GRAMMARS = 256
_LOWEST_PRIORITY = 19  # of threads that compile: on a busy processor they get what others leave, and little else


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
        self._indexes: _Once[tuple[Dfa, TokenIndex] | str] = _Once(lambda grammar: index_of(grammar, vocabulary))
        self._tokens: _Once[xgrammar.CompiledGrammar] = _Once(
            lambda grammar: self._compiled(grammar.rules.serialize_json())
        )

    def compile(self, grammar: Grammar) -> Compiled:
        """Return the grammar compiled for the vocabulary, as an automaton where it can be one."""
        automaton = self.automaton(grammar)
        return self.pushdown(grammar) if isinstance(automaton, str) else automaton

    def known(self, grammar: Grammar) -> Compiled | None:
        """Return the compiled grammar where it has been compiled before; None else, without waiting."""
        automaton = self._indexes.known(grammar) if self._automata else ""
        if isinstance(automaton, tuple):
            return CompiledAutomaton(grammar, self.vocabulary, *automaton)
        tokens = self._tokens.known(grammar) if automaton is not None else None
        return None if tokens is None else CompiledGrammar(grammar, self.vocabulary, tokens)

    def automaton(self, grammar: Grammar) -> CompiledAutomaton | str:
        """Return the grammar as an automaton with a token index, or why it is none."""
        if not self._automata:
            return "automata are switched off"
        found = self._indexes.get(grammar)
        return found if isinstance(found, str) else CompiledAutomaton(grammar, self.vocabulary, *found)

    def pushdown(self, grammar: Grammar) -> CompiledGrammar:
        """Return the grammar compiled by xgrammar."""
        return CompiledGrammar(grammar, self.vocabulary, self._tokens.get(grammar))

    def _compile_rules(self, rules: str) -> xgrammar.CompiledGrammar:
        return self._compiler.compile_grammar(xgrammar.Grammar.deserialize_json(rules))


class _Once(Generic[T]):
    """What is made of each grammar: once, by the first who asks. Others wait, if it is for the same grammar."""

    def __init__(self, make: Callable[[Grammar], T]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[Grammar, Future[T]] = WeakKeyDictionary()
        self._lock = Lock()

    def get(self, grammar: Grammar) -> T:
        with self._lock:
            future = self._made.get(grammar)
            is_first = future is None
            if future is None:
                future = self._made[grammar] = Future()
        if is_first:
            self._fill(future, grammar)
        return future.result()

    def known(self, grammar: Grammar) -> T | None:
        with self._lock:
            future = self._made.get(grammar)
        return future.result() if future is not None and future.done() and not future.exception() else None

    def _fill(self, future: Future[T], grammar: Grammar) -> None:
        try:
            future.set_result(self._make(grammar))
        except BaseException as error:
            with self._lock:  # an error is told to those who wait now, and not kept
                del self._made[grammar]
            future.set_exception(error)


class CompilerPool:
    """Threads that compile. However many requests share a grammar, it takes up one of them."""

    def __init__(self, compiler: GrammarCompiler, num_threads: int) -> None:
        self._compiler = compiler
        self._threads = ThreadPoolExecutor(
            num_threads, thread_name_prefix="jumpforward-compiler", initializer=_step_back
        )
        self._under_way: dict[Grammar, Future[Compiled]] = {}
        self._lock = Lock()

    def start(self, grammar: Grammar) -> Future[Compiled]:
        """Return the compiled grammar, as soon as a thread has made it; at once if it was compiled before.

        The future is shared: do not cancel it.

        Raises:
            RuntimeError: the pool is closed.
        """
        known = self._compiler.known(grammar)
        if known is not None:
            done: Future[Compiled] = Future()
            done.set_result(known)
            return done
        with self._lock:
            future = self._under_way.get(grammar)
            if future is None:
                future = self._under_way[grammar] = self._threads.submit(self._compiler.compile, grammar)
                future.add_done_callback(lambda _: self._under_way.pop(grammar, None))
        return future

    def close(self) -> None:
        """Let go of the threads, each when it has finished what it compiles. What has not begun is cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _step_back() -> None:
    """Have this thread, and those that it starts, leave the processor to others: requests that run are not to wait."""
    if sys.platform == "linux":  # elsewhere a priority belongs to the whole process
        os.setpriority(os.PRIO_PROCESS, get_native_id(), _LOWEST_PRIORITY)
