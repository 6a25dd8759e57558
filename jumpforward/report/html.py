"""The report as one page of HTML: no network, everything escaped, schema by schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

import jumpforward
from jumpforward.report.chunk_cost import ChunkCost
from jumpforward.report.counts import RunTotals, TokenCounts
from jumpforward.report.layout import written_whole
from jumpforward.report.plots import plots
from jumpforward.report.results import SchemaResult, SettingResult
from jumpforward.report.runs import runs_tables
from jumpforward.report.settings import Options
from jumpforward.report.table import Table, percent, short
from jumpforward.report.tables import tables
from jumpforward.report.totals import Totals

_MAX_WARNINGS = 20  # of one schema


@dataclass(frozen=True)
class Page:
    """What a page shows beside its schemas.

    Attributes:
        corpus: the corpus's name.
        options: what was asked.
        totals: the figures of all schemas.
        curve: the time of a chunk, for speedups.
        runs: what happened in runs.
        num_shown: schemas of which a document is shown at most.
    """

    corpus: str
    options: Options
    totals: Totals
    curve: ChunkCost | None
    runs: RunTotals
    num_shown: int

    def tables(self) -> list[Table]:
        """Return the page's tables."""
        return [*runs_tables(self.runs, self.totals), *tables(self.totals, self.curve)]


def write_html(path: Path, page: Page, results: Callable[[], Iterable[SchemaResult]]) -> None:
    """Write the page; ``results`` gives the schemas' results one by one, as often as it is called."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jumpforward.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    stream = environment.get_template("report.html.j2").stream(
        page=page,
        version=jumpforward.__version__,
        tiles=tiles(page.totals),
        plots=[(title, Markup(svg)) for title, svg in plots(page.totals)],
        settings=script_json([setting.name for setting in page.options.settings]),
        tokenizers=script_json([short(name) for name in page.options.tokenizers]),
        rows=_joined(script_json(schema_row(result, page)) for result in results()),
        issues=_joined(script_json(issue) for result in results() for issue in _issues(result)),
    )
    with written_whole(path) as file:
        file.writelines(stream)


def tiles(totals: Totals) -> list[tuple[str, str]]:
    """Return the few figures that come first: those of the first setting and the first tokenizer."""
    found = [("schemas", str(totals.num_schemas)), ("of these without a result", str(totals.num_problems))]
    first = next(totals.whole(), None)
    if first is None:
        return found
    documents, name, tally = first
    accepted = f"{tally.num_accepted} of {tally.num_accepted + tally.num_rejected + tally.num_unwalked}"
    found += [(f"documents accepted ({documents}; {name})", accepted)]
    found += [("of bytes forced", percent(tally.bytes.share_forced))]
    for tokenizer, counts in list(tally.tokens.items())[:1]:
        fewest, most = (100 * counts.share_of_passes(f"exact_{bound}") for bound in ("fewest", "most"))
        found += [(f"of tokens forced, {short(tokenizer)}", percent(counts.share_forced))]
        found += [("of masked's passes with exact, predicted", f"{fewest:.0f} - {most:.0f} %")]
    return found


def script_json(value: Any) -> Markup:
    """Return JSON that can stand in a script element, whatever strings are in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def schema_row(result: SchemaResult, page: Page) -> list[Any]:
    """Return a schema as the page's script reads it, short names for a small page.

    [id, group, source, documents, problem, [figures by setting], [[setting, text, segments, token starts]]], where a
    setting's figures are a failure as text, or [accepted, reordered, rejected, share of bytes, [by tokenizer: share
    of tokens, share of stable tokens, passes of exact by masked's], [warnings]].
    """
    names = [setting.name for setting in page.options.settings]
    found = {one.setting.name: one for one in result.settings}
    figures = [_figures(found[name], page.options.tokenizers) if name in found else None for name in names]
    shown = [
        [names.index(name), document.text, document.segments, document.tokens]
        for name, document in result.shown()
        if result.index < page.num_shown
    ]
    source = [result.documents, result.num_documents]
    return [result.id, result.group, *source, result.problem or "", figures, shown]


def _figures(one: SettingResult, tokenizers: Iterable[str]) -> Any:
    if one.failure is not None:
        return one.failure
    tally = one.tally
    tokens = [tally.tokens.get(name, TokenCounts()) for name in tokenizers]
    of_tokens = [
        [_rounded(counts.share_forced), _rounded(counts.share_stable), _rounded(counts.share_of_passes("exact_fewest"))]
        if counts.num_documents
        else None
        for counts in tokens
    ]
    documents = [tally.num_accepted, tally.num_reordered, tally.num_rejected]
    return [*documents, _rounded(tally.bytes.share_forced), of_tokens, one.warnings[:_MAX_WARNINGS]]


def _issues(result: SchemaResult) -> Iterator[list[Any]]:
    """Yield what went wrong with a schema: [id, setting, what, details]."""
    if result.problem is not None:
        yield [result.id, "", "no result", result.problem]
    for one in result.settings:
        if one.failure is not None:
            yield [result.id, one.setting.name, "no grammar", one.failure]
        for note in one.notes:
            where = f"document {note.document + 1}, byte {note.place} of {note.num_bytes}: "
            came = f"{note.came!r} came" if note.came else "it ends"
            yield [result.id, one.setting.name, note.outcome, f"{where}{came}, legal was {note.expected}"]


def _joined(parts: Iterable[Markup]) -> Iterator[Markup]:
    for index, part in enumerate(parts):
        yield Markup(",\n") + part if index else part


def _rounded(share: float) -> float:
    return round(share, 4)
