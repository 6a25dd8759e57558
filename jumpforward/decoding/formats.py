"""Drafts of JSON's layout where the grammar leaves whitespace to the model.

Flexible whitespace forces next to nothing; and yet a model keeps to one layout. The same schema under each of the usual
layouts runs along beside the wide grammar, as long as the output fits it, and bids what *it* forces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import xgrammar

from jumpforward.decoding.boundary import Boundary
from jumpforward.decoding.drafter import Bid, Drafter, DraftRequest, DraftView
from jumpforward.errors import GrammarError
from jumpforward.grammar import schema_checks
from jumpforward.grammar.spec import Grammar
from jumpforward.matching.matcher import Matcher

_CONFIDENCE = 0.85

# Of each layout: the indentation, and what stands between items, and between key and value.
_LAYOUTS: tuple[tuple[int | None, tuple[str, str]], ...] = (
    (None, (", ", ": ")),
    (None, (",", ":")),
    (2, (",", ": ")),
    (4, (",", ": ")),
)


class FixedFormats(Drafter):
    """Drafts what one of the usual layouts of JSON forces, while the output keeps to it."""

    name = "formats"

    def __init__(self, boundary: Boundary, matcher: Callable[[Grammar], Matcher]) -> None:
        """``matcher`` gives a matcher at the start of a grammar."""
        self._boundary = boundary
        self._matcher = matcher
        self._layouts: WeakKeyDictionary[Grammar, Sequence[Grammar]] = WeakKeyDictionary()
        self._lock = Lock()

    def start(self, request: DraftRequest) -> Drafter | None:
        """Return the source of one request; it has something to say only where whitespace is flexible."""
        with self._lock:
            layouts = self._layouts.get(request.grammar)
            if layouts is None:
                layouts = self._layouts[request.grammar] = _layouts(request.grammar)
        return _Layouts(self._boundary, [_Beside(self._matcher(layout)) for layout in layouts]) if layouts else None

    def propose(self, view: DraftView) -> Bid | None:  # noqa: ARG002  (its requests' sources do that)
        """Return None: there is no request."""
        return None


def _layouts(grammar: Grammar) -> list[Grammar]:
    """Return the grammar in the usual layouts; none where it has a layout of its own."""
    if grammar.kind != "json_schema" or not grammar.walker().consume(b"{\n"):
        return []
    found = []
    for indent, separators in _LAYOUTS:
        convert = partial(_converted, indent=indent, separators=separators)
        with suppress(GrammarError):  # a layout that cannot be had is one that does not draft
            found.append(Grammar("json_schema", grammar.source, schema_checks.convert(grammar.schema, convert)))
    return found


def _converted(schema: Any, indent: int | None, separators: tuple[str, str]) -> xgrammar.Grammar:
    return xgrammar.Grammar.from_json_schema(
        json.dumps(schema), any_whitespace=False, indent=indent, separators=separators, strict_mode=True
    )


class _Beside:
    """A matcher that follows the output and the draft as far as it can."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._path: list[int] = []

    def forced_bytes(self, output_ids: Sequence[int]) -> bytes:
        """Return what is forced behind these tokens; nothing where they do not fit."""
        path = self._path
        if path != output_ids[: len(path)]:
            num_same = next(
                (at for at, (mine, theirs) in enumerate(zip(path, output_ids, strict=False)) if mine != theirs),
                min(len(path), len(output_ids)),
            )
            self._matcher.rollback(len(path) - num_same)
            del path[num_same:]
        for token in output_ids[len(path) :]:
            if not self._matcher.consume(token):
                return b""
            path.append(token)
        return self._matcher.forced_bytes()


class _Layouts(FixedFormats):
    def __init__(self, boundary: Boundary, beside: Sequence[_Beside]) -> None:
        self._boundary = boundary
        self._beside = beside
        self._last = 0  # the layout that went on last; it is asked first

    def propose(self, view: DraftView) -> Bid | None:
        for turn in range(len(self._beside)):
            index = (self._last + turn) % len(self._beside)
            forced = self._beside[index].forced_bytes(view.output_ids)
            if forced and (tokens := self._boundary.tokens(view.output_ids, forced)) and view.allows(tokens[0]):
                self._last = index
                return Bid(tokens, _CONFIDENCE)
        return None
