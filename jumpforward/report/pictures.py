"""Pictures of a report as files of their own: an annotated document and the plots, as SVG on white."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

from jumpforward.report.layout import written_whole
from jumpforward.report.plots import plots
from jumpforward.report.results import Annotated, SchemaResult
from jumpforward.report.totals import Totals

_LEN_LINE = 92  # characters
_EM = 13.0
_CHAR = 0.602 * _EM
_LINE = 22.0
_MARGIN = 14.0
_COLOURS = {
    "forced": "#bfe6e4",
    "branch": "#f6d9ae",
    "free text": "#faf1d5",
    "recursion": "#d9d3f7",
    "accepting": "#cfe5c6",
    "whitespace": "#f4c9bd",
}
_MANY_BYTES = 64  # with more of them live, a place is free text


@dataclass(frozen=True)
class _Cell:
    """A character, what it is coloured by, and whether a token begins with it."""

    char: str
    kind: str
    starts_token: bool


def write_pictures(folder: Path, totals: Totals, first: SchemaResult | None) -> list[Path]:
    """Write ``document.svg``, of the first document of a schema, and one file a plot; return the files."""
    pictures = [(f"plot-{number}.svg", svg) for number, (_, svg) in enumerate(plots(totals), start=1)]
    shown = [] if first is None else list(first.shown())
    if shown:
        pictures.append(("document.svg", document_svg(shown)))
    for name, svg in pictures:
        with written_whole(folder / name) as file:
            file.write(svg.replace("currentColor", "#1d2328").replace("<svg ", '<svg style="background: white" ', 1))
    return [folder / name for name, _ in pictures]


def document_svg(shown: list[tuple[str, Annotated]]) -> str:
    """Return annotated documents, each under its title, with what the colours mean below them."""
    top = _MARGIN
    parts: list[str] = []
    for title, document in shown:
        parts.append(_text(_MARGIN, top + 14, title, "font-weight: 600"))
        top += _LINE
        for line in _lines(document):
            parts += _line(line, top)
            top += _LINE
        top += _LINE / 2
    parts += _legend(
        sorted({cell.kind for _, document in shown for cell in _cells(document)}, key=list(_COLOURS).index), top
    )
    width, height = 2 * _MARGIN + _LEN_LINE * _CHAR, top + _LINE + _MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">'
    style = (
        f"<style>text {{ font: {_EM:.0f}px ui-monospace, monospace; fill: currentColor; white-space: pre; }}</style>"
    )
    return "\n".join([head, style, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def _cells(document: Annotated) -> Iterator[_Cell]:
    starts, place = set(document.tokens), 0
    for count, stop, live in document.segments:
        kind = "forced" if not stop else "free text" if stop == "branch" and live > _MANY_BYTES else stop
        for _ in range(count):
            yield _Cell(document.text[place], kind, place in starts)
            place += 1


def _lines(document: Annotated) -> Iterator[list[_Cell]]:
    cells = list(_cells(document))
    for start in range(0, len(cells), _LEN_LINE):
        yield cells[start : start + _LEN_LINE]


def _line(line: list[_Cell], top: float) -> Iterator[str]:
    """Yield the shapes of a line: grounds, token borders, text."""
    place = 0
    for kind, run in groupby(line, lambda cell: cell.kind):
        text = "".join(cell.char for cell in run)
        left, width = _MARGIN + place * _CHAR, len(text) * _CHAR
        yield f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="18" fill="{_COLOURS[kind]}"/>'
        yield _text(left, top + 13.5, text, length=width)
        place += len(text)
    for place, cell in enumerate(line):
        if cell.starts_token:
            x = _MARGIN + place * _CHAR
            yield f'<path d="M{x:.1f} {top:.1f}v18" stroke="#5a8f8e" stroke-width="0.7"/>'


def _legend(kinds: list[str], top: float) -> Iterator[str]:
    left = _MARGIN
    for kind in kinds:
        width = (len(kind) + 2) * _CHAR
        yield f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="18" rx="3" fill="{_COLOURS[kind]}"/>'
        yield _text(left + _CHAR, top + 13.5, kind)
        left += width + _CHAR


def _text(x: float, y: float, text: str, style: str = "", length: float | None = None) -> str:
    fitted = f' textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs"' if length else ""
    styled = f' style="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{fitted}{styled}>{escape(text)}</text>'
