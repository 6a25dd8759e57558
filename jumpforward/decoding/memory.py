"""Drafts of what followed the same few tokens before: in the prompt, in this output, in earlier ones.

A table maps contexts, the last one to five tokens, to the tokens that came behind them most recently. The longest
context that knows a legal token bids it. One table covers what prompt lookup, history and the model's own way to
spell forced text would each give.

What one request leaves for another can be told from how fast the other is. Its scope is therefore explicit: ``"off"``
for no table at all, ``"request"`` for prompt and output of the same request, ``"grammar"`` for earlier outputs of the
same grammar too, ``"process"`` for those of every grammar and engine with the same vocabulary. Prompts are never
shared.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Literal, get_args
from weakref import WeakKeyDictionary

from jumpforward.decoding.drafter import Bid, Drafter, DraftRequest, DraftView, Outcome
from jumpforward.errors import MemoryFileError
from jumpforward.grammar.spec import Grammar
from jumpforward.vocab.vocabulary import Vocabulary

MemoryScope = Literal["off", "request", "grammar", "process"]
MEMORY_SCOPES: tuple[str, ...] = get_args(MemoryScope)
DEFAULT_MEMORY_BYTES = 32 << 20

LEN_CONTEXT = 5
_NUM_RECENT = 8  # tokens that are remembered behind a context
_ENTRY_BYTES = 430  # of an entry with everything in it, as Python stores it, at most; measured by a test
_DOUBT = {1: 3.0, 2: 1.0, 3: 0.6, 4: 0.4, 5: 0.25}  # by the length of a context: what is added to the total count
# What others wrote tells how the model spells keys, and little of what a value is.
_OTHERS = {False: "others", True: "others, in free text"}
_CLAUSE_ENDS = b",.;:!?)"  # of the prompt: values that are copied from it often end there
_EVERY_GRAMMAR = 0
_PROMPT, _OUTPUT = 0, 1  # tables of one request
_VERSION = 1

Context = tuple[int, ...]  # which table, and tokens
Table = tuple["Memory", int]


class Memory:
    """Tables of what followed, in one store of bounded size. What was not used for longest goes first. Thread-safe.

    Attributes:
        max_bytes: about how much memory it takes at most.
    """

    def __init__(self, max_bytes: int = DEFAULT_MEMORY_BYTES, *, vocabulary: str = "") -> None:
        """Begin empty. ``vocabulary`` says what token ids mean: files of another one are refused."""
        self.max_bytes = max_bytes
        self._vocabulary = vocabulary
        self._recent: OrderedDict[Context, tuple[int, ...]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        """Return the number of contexts."""
        return len(self._recent)

    @property
    def num_bytes(self) -> int:
        """About how much memory it takes."""
        return len(self._recent) * _ENTRY_BYTES

    def add(self, table: int, ids: Sequence[int], start: int) -> None:
        """Note of each token of ``ids`` from index ``start`` on what it came behind."""
        recent = self._recent
        with self._lock:
            for at in range(start, len(ids)):
                token = ids[at]
                for first in range(max(0, at - LEN_CONTEXT), at):
                    context = (table, *ids[first:at])
                    known = recent.pop(context, ())
                    recent[context] = (*known[1 - _NUM_RECENT :], token)
            while len(recent) > max(0, self.max_bytes // _ENTRY_BYTES):
                recent.popitem(last=False)

    def recent(self, table: int, context: Context) -> tuple[int, ...]:
        """Return what came behind a context, the most recent last."""
        key = (table, *context)
        found = self._recent.get(key)
        if found is None:
            return ()
        with self._lock:
            if key in self._recent:  # another thread may have let it go by now
                self._recent.move_to_end(key)
        return found

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._recent.clear()

    def save(self, path: str | Path) -> None:
        """Write everything to a file, which then tells what was generated.

        Raises:
            OSError: it cannot be written.
        """
        with self._lock:
            entries = [[list(context), list(recent)] for context, recent in self._recent.items()]
        record = {"version": _VERSION, "vocabulary": self._vocabulary, "entries": entries}
        Path(path).write_text(json.dumps(record, separators=(",", ":")), encoding="utf-8")

    def load(self, path: str | Path) -> None:
        """Take in what a file says, as if it had come just now; nothing, if the file is refused.

        Raises:
            MemoryFileError: the file is no such file, or of another version or another vocabulary.
            OSError: it cannot be read.
        """
        entries = _entries(Path(path).read_bytes(), self._vocabulary, str(path))
        with self._lock:
            for context, recent in entries:
                self._recent.pop(context, None)
                self._recent[context] = recent
            while len(self._recent) > self.max_bytes // _ENTRY_BYTES:
                self._recent.popitem(last=False)


def _entries(data: bytes, vocabulary: str, path: str) -> list[tuple[Context, tuple[int, ...]]]:
    """Return the entries of a saved memory."""
    try:
        record = json.loads(data)
        version, written_for, entries = record["version"], record["vocabulary"], record["entries"]
    except (ValueError, TypeError, KeyError) as error:
        raise MemoryFileError(f"{path!r} is no saved memory: expected a file that Memory.save wrote") from error
    if version != _VERSION:
        raise MemoryFileError(f"{path!r} has version {version!r} of the format, and this release reads {_VERSION}")
    if written_for != vocabulary:
        raise MemoryFileError(f"{path!r} was saved with another vocabulary, in which ids stand for other text")
    try:
        found = [(_integers(context), _integers(recent)) for context, recent in entries]
    except (TypeError, ValueError) as error:
        raise MemoryFileError(f"{path!r} is damaged: expected lists of whole numbers") from error
    return [(context, recent[-_NUM_RECENT:]) for context, recent in found if 2 <= len(context) <= LEN_CONTEXT + 1]


def _integers(values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise TypeError("not a list of whole numbers")
    return tuple(values)


class EarlierTokens(Drafter):
    """Drafts what came behind the same tokens before."""

    name = "memory"

    def __init__(self, scope: MemoryScope, memory: Memory | None) -> None:
        """Share ``memory`` between requests, as far as the scope says; None where it says that nothing is shared."""
        self._scope = scope
        self._memory = memory
        self._tables: WeakKeyDictionary[Grammar, int] = WeakKeyDictionary()

    def start(self, request: DraftRequest) -> Drafter:
        """Return the source of one request, which knows its prompt."""
        if self._memory is None:
            return _RequestMemory(request, ())
        tables = [self._table(request.grammar)]
        if self._scope == "process":
            tables.insert(0, _EVERY_GRAMMAR)
        return _RequestMemory(request, [(self._memory, table) for table in tables])

    def _table(self, grammar: Grammar) -> int:
        """Return the number of a grammar's table: the same for every object with the same rules."""
        table = self._tables.get(grammar)
        if table is None:
            digest = hashlib.blake2b(f"{grammar.kind} {grammar.rules}".encode(), digest_size=7).digest()
            table = self._tables[grammar] = 1 + int.from_bytes(digest, "little")
        return table


class _RequestMemory(Drafter):
    name = "memory"

    def __init__(self, request: DraftRequest, shared: Sequence[Table]) -> None:
        """``shared``: what others wrote, the most telling last."""
        self._token_bytes = request.vocabulary.token_bytes
        own = Memory(max_bytes=DEFAULT_MEMORY_BYTES)
        own.add(_PROMPT, request.prompt_ids, 1)
        self._before = tuple(request.prompt_ids[-LEN_CONTEXT:])
        self._shared = shared
        self._own = [(own, _PROMPT), (own, _OUTPUT)]
        self._num_learned = 0

    def propose(self, view: DraftView) -> Sequence[Bid]:
        """Bid what is likeliest of all; and if that is from others, what is likeliest by the request alone.

        A longer context of theirs, such as a key, says little of this request's values, which may well repeat.
        """
        # The most recent last: what this request says counts for more than what others did.
        best = self._likeliest(view, [*self._shared, *self._own])
        if best is None:
            return ()
        own = self._likeliest(view, self._own) if best.kind in _OTHERS.values() else None
        return (best,) if own is None else (best, own)

    def _likeliest(self, view: DraftView, tables: Sequence[Table]) -> Bid | None:
        """Return the legal token that came most often behind the longest context that any came behind."""
        context = view.last_ids(LEN_CONTEXT)
        for first in range(len(context)):
            behind = context[first:]
            legal = [token for memory, table in tables for token in memory.recent(table, behind) if view.allows(token)]
            if legal:
                best = max(reversed(legal), key=legal.count)
                confidence = legal.count(best) / (len(legal) + _DOUBT[len(behind)])
                return Bid((best,), confidence, self._kind(best, behind, view.has_choice))
        return None

    def _kind(self, token: int, behind: Context, has_choice: bool) -> str:
        """Say who knows a token, and what is said with it."""
        by_prompt, by_output = (token in memory.recent(table, behind) for memory, table in self._own)
        if by_output:
            return "output"
        if not by_prompt:
            return _OTHERS[has_choice]
        return "prompt, end of a clause" if has_choice and self._token_bytes[token][:1] in _CLAUSE_ENDS else "prompt"

    def learn(self, outcome: Outcome) -> None:
        start = max(0, self._num_learned - LEN_CONTEXT)
        ids = [*(self._before if not start else ()), *outcome.output_ids[start:]]
        first_new = len(ids) - (len(outcome.output_ids) - self._num_learned)
        for memory, table in (*self._shared, self._own[1]):
            memory.add(table, ids, first_new)
        self._num_learned = len(outcome.output_ids)


_OF_PROCESS: dict[str, Memory] = {}
_OF_PROCESS_LOCK = Lock()


def memory_for(scope: MemoryScope, vocabulary: Vocabulary, max_bytes: int) -> Memory | None:
    """Return what requests share under a scope: the process's memory, one of its own, or None."""
    if scope in ("off", "request"):
        return None
    digest = hashlib.blake2b(b"\0".join(vocabulary.token_bytes), digest_size=16).hexdigest()
    if scope == "grammar":
        return Memory(max_bytes, vocabulary=digest)
    with _OF_PROCESS_LOCK:
        memory = _OF_PROCESS.setdefault(digest, Memory(max_bytes, vocabulary=digest))
        memory.max_bytes = max(memory.max_bytes, max_bytes)
    return memory
