"""One schema of a corpus: its documents walked under every setting, with every tokenizer laid over the same walk."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from jumpforward.errors import GrammarError, GrammarWarning
from jumpforward.grammar.bytewise import ByteWalker
from jumpforward.grammar.draw import class_text
from jumpforward.grammar.spec import Grammar
from jumpforward.report.annotate import annotated
from jumpforward.report.changes import CHANGES, ORDERED, REQUIRED, changed_setting, with_required
from jumpforward.report.corpus import Row
from jumpforward.report.counts import ByteCounts, Gain, Tally, TokenCounts, TokenGain, histogram
from jumpforward.report.overlay import Tokens
from jumpforward.report.passes import Laid, run_ends
from jumpforward.report.places import Places
from jumpforward.report.results import Note, SchemaResult, SettingResult
from jumpforward.report.sampled import sampled
from jumpforward.report.settings import Options, Setting
from jumpforward.report.walk import Walk, walk_along

_LEN_CAME = 24  # characters of a rejected document that are shown
_SAVED = "exact_fewest"  # the passes by which changes are compared


@dataclass(frozen=True)
class Figures:
    """One accepted document's figures."""

    found: Walk
    bytes: ByteCounts
    tokens: dict[str, TokenCounts]


@dataclass(frozen=True)
class _Compiled:
    """A grammar with its warnings, or why there is none. Its walker is compiled once for all documents."""

    grammar: Grammar | None
    walker: ByteWalker | None = None
    failure: str | None = None
    warnings: tuple[str, ...] = ()

    def walk(self, text: bytes) -> Walk | None:
        """Walk a text from the start; None without a grammar."""
        if self.walker is None:
            return None
        self.walker.reset()
        return walk_along(self.walker, text)


def measure(row: Row, options: Options, tokens: Mapping[str, Tokens]) -> SchemaResult:
    """Return all figures of a row; ``tokens`` holds the tokenizers by the names in the options."""
    result = SchemaResult(index=row.index, id=row.id, group=row.group)
    if row.problem is not None:
        return result.model_copy(update={"problem": row.problem})
    return _Measured(row, options, tokens).result(result)


def byte_counts(found: Walk) -> ByteCounts:
    """Return the figures of an accepted document's bytes."""
    num_forced = sum(found.forced)
    ends = run_ends(found.forced)
    starts = [place for place, forced in enumerate(found.forced) if forced and not (place and found.forced[place - 1])]
    return ByteCounts(
        num_documents=1,
        num_bytes=len(found.data),
        num_forced_bytes=num_forced,
        num_runs=len(starts),
        num_choices=len(found.choices),
        stops=dict(Counter(choice.stop for choice in found.choices)),
        live=histogram(len(choice.live) for choice in found.choices if choice.stop == "branch"),
        run_lengths=histogram(ends[start] - start for start in starts),
        shares={100 * num_forced // max(1, len(found.data)): 1},
    )


def token_counts(found: Walk, tokens: Tokens) -> TokenCounts:
    """Return the figures of a tokenizer's canonical tokens of an accepted document."""
    ids = tokens.encode(found.data)
    if ids is None:
        return TokenCounts(num_lossy_documents=1)
    lengths = [len(tokens.vocabulary.token_bytes[index]) for index in ids]
    return Laid(found, ids, lengths, tokens.boundary).counts()


class _Measured:
    """The work on one row. Remembers grammars and walked texts, which several settings and changes share."""

    def __init__(self, row: Row, options: Options, tokens: Mapping[str, Tokens]) -> None:
        self._row = row
        self._options = options
        self._tokens = tokens
        self._places = Places(row.schema_)
        self._compiled: dict[tuple[Setting, str], _Compiled] = {}
        self._figures: dict[tuple[Setting, str, bytes], Figures | Walk] = {}
        self._required = with_required(row.schema_, row.instances)

    def result(self, result: SchemaResult) -> SchemaResult:
        row = self._row
        documents = [*row.instances, *(text.encode() for text in row.texts)]
        kind = "results" if row.texts else "real"
        if not documents:
            kind, documents = "sampled", list(self._sampled())
            if not documents and any(self._compile(setting).grammar for setting in self._options.settings):
                result = result.model_copy(update={"problem": "no instance, and none could be sampled"})
        settings = [self._setting(setting, documents) for setting in self._options.settings]
        return result.model_copy(update={"documents": kind, "num_documents": len(documents), "settings": settings})

    def _sampled(self) -> Iterable[bytes]:
        """Return documents of the narrowest grammar, which the others accept too."""
        compiled = self._compile(Setting())
        if compiled.grammar is None or not self._options.num_sampled:
            return ()
        return sampled(compiled.grammar, self._options.num_sampled, f"{self._options.seed}/{self._row.id}")

    def _setting(self, setting: Setting, documents: Sequence[Any]) -> SettingResult:
        compiled = self._compile(setting)
        if compiled.grammar is None:
            return SettingResult(
                setting=setting, failure=compiled.failure, tally=Tally(num_failed=1, num_unwalked=len(documents))
            )
        accepted: list[Figures] = []
        notes: list[Note] = []
        for index, document in enumerate(documents):
            figures, note = self._document(setting, index, document)
            accepted += [figures] if figures is not None else []
            notes += [note] if note is not None else []
        num_reordered = sum(note.outcome == "reordered" for note in notes)
        tally = Tally(
            num_schemas=1,
            num_accepted=len(accepted),
            num_reordered=num_reordered,
            num_rejected=len(notes) - num_reordered,
            bytes=reduce(add, (figures.bytes for figures in accepted), ByteCounts()),
            tokens={
                name: reduce(add, (figures.tokens[name] for figures in accepted), TokenCounts())
                for name in self._tokens
            },
            gains=self._gains(setting, accepted),
        )
        first = next(iter(self._tokens.values()), None)
        shown = annotated(accepted[0].found, first) if accepted else None
        return SettingResult(
            setting=setting, warnings=list(compiled.warnings), tally=tally, notes=notes, annotated=shown
        )

    def _document(self, setting: Setting, index: int, document: Any) -> tuple[Figures | None, Note | None]:
        """Return an accepted document's figures, and a note on one that is not accepted as it is."""
        text = document if isinstance(document, bytes) else _text(document, setting)
        found = self._walked(setting, "", text)
        if isinstance(found, Figures):
            return found, None
        if not isinstance(document, bytes):
            ordered = self._walked(setting, "", _text(self._places.ordered(document), setting))
            if isinstance(ordered, Figures):
                return ordered, _note(found, index, "reordered")
            found = max(found, ordered, key=lambda one: len(one.forced))
        return None, _note(found, index, "rejected")

    def _gains(self, setting: Setting, accepted: Sequence[Figures]) -> dict[str, Gain]:
        """Return what each change that changes something does to the accepted documents."""
        gains: dict[str, Gain] = {}
        for change in CHANGES:
            pairs: list[tuple[Figures | Walk, Figures | Walk]]
            if change == ORDERED:
                pairs = [(self._walked(setting, ORDERED, one.found.data), one) for one in accepted]
            elif change == REQUIRED and self._required is not None:
                pairs = [(one, self._walked(setting, REQUIRED, one.found.data)) for one in accepted]
            elif (other := changed_setting(change, setting)) is not None:
                pairs = [(one, self._walked(other, "", one.found.data)) for one in accepted]
            else:
                continue
            gains[change] = reduce(add, (_gain(*pair) for pair in pairs), Gain())
        return gains

    def _walked(self, setting: Setting, variant: str, text: bytes) -> Figures | Walk:
        """Return a text's figures in a variant of the grammar, or the way to where it is not accepted."""
        key = (setting, variant, text)
        if key not in self._figures:
            found = self._compile(setting, variant).walk(text) or Walk(text, (), (), False)
            self._figures[key] = self._laid(found) if found.is_complete else found
        return self._figures[key]

    def _laid(self, found: Walk) -> Figures:
        laid = {name: token_counts(found, tokens) for name, tokens in self._tokens.items()}
        return Figures(found, byte_counts(found), laid)

    def _compile(self, setting: Setting, variant: str = "") -> _Compiled:
        key = (setting, variant)
        if key not in self._compiled:
            schema = self._required if variant == REQUIRED else self._row.schema_
            self._compiled[key] = _compile(setting, schema, any_order=variant == ORDERED)
        return self._compiled[key]


def _compile(setting: Setting, schema: Any, *, any_order: bool) -> _Compiled:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GrammarWarning)
        try:
            grammar = setting.grammar(schema, any_order=any_order)
            walker = grammar.walker()
        except (GrammarError, RuntimeError) as error:  # xgrammar's own errors come when it compiles
            return _Compiled(None, failure=str(error))
    return _Compiled(grammar, walker, None, tuple(str(item.message) for item in caught))


def _text(value: Any, setting: Setting) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=setting.separators).encode()
    except UnicodeEncodeError:  # half a surrogate pair has no bytes; JSON can only escape it
        return json.dumps(value, separators=setting.separators).encode()


def _note(found: Walk, index: int, outcome: Any) -> Note:
    place = len(found.forced)
    came = found.data[place : place + 4 * _LEN_CAME].decode(errors="replace")[:_LEN_CAME]
    expected = class_text(found.expected) if found.expected else "the end"
    return Note(document=index, outcome=outcome, place=place, num_bytes=len(found.data), came=came, expected=expected)


def _gain(before: Figures | Walk, after: Figures | Walk) -> Gain:
    if not isinstance(before, Figures) or not isinstance(after, Figures):
        return Gain(num_lost=int(not isinstance(after, Figures)))
    return Gain(
        num_documents=1,
        num_bytes=before.bytes.num_bytes,
        num_forced_before=before.bytes.num_forced_bytes,
        num_forced_after=after.bytes.num_forced_bytes,
        tokens={name: _token_gain(before.tokens[name], after.tokens[name]) for name in before.tokens},
    )


def _token_gain(before: TokenCounts, after: TokenCounts) -> TokenGain:
    return TokenGain(
        num_tokens=before.num_tokens,
        num_forced_before=before.num_forced_tokens,
        num_forced_after=after.num_forced_tokens,
        passes_before=before.passes.get(_SAVED, 0),
        passes_after=after.passes.get(_SAVED, 0),
    )
