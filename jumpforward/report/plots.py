"""The plots of a report, as SVG in the colours of the page around them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jumpforward.report.counts import Tally, TokenCounts
from jumpforward.report.table import short
from jumpforward.report.totals import ALL, Totals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#010203"  # stands for the page's own colour of text, which the page decides
_COLOURS = ("#0f8b8d", "#e0a458", "#7b6fd0", "#c8553d", "#5c8d4e", "#8c8c8c")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "jumpforward",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
_REASONS = {  # in the colours of annotated documents, but stronger
    "forced": "#0f8b8d",
    "free text": "#ead98b",
    "branch": "#e0a458",
    "recursion": "#7b6fd0",
    "accepting": "#5c8d4e",
    "whitespace": "#c8553d",
}
_MAX_RUN = 40  # forced bytes; longer runs share the last bar


def plots(totals: Totals) -> Iterator[tuple[str, str]]:
    """Yield the plots that have something to show, as (title, SVG)."""
    source = "real" if "real" in totals.tallies else next(iter(totals.tallies), None)
    if source is None:
        return
    whole = totals.tallies[source][ALL]
    first = next((name for tally in whole.values() for name in tally.tokens), None)
    if first is not None and totals.groups():
        yield f"Forced tokens by group, {short(first)}", groups_plot(totals, source, first)
    if first is not None:
        yield "Forward passes predicted, by masked's", passes_plot(whole)
    yield "Why forcing stops, by a document's bytes", stops_plot(whole)
    yield "Lengths of forced runs", runs_plot(whole)


def groups_plot(totals: Totals, source: Any, tokenizer: str) -> str:
    """Return bars of the forced share of tokens by group, one a setting."""
    groups = {group: found for group, found in totals.tallies[source].items() if group}
    names = list(totals.tallies[source][ALL])

    def share(group: str, name: str) -> float:
        tally = groups[group].get(name, Tally())
        return 100 * tally.tokens.get(tokenizer, TokenCounts()).share_forced

    order = sorted(groups, key=lambda group: share(group, names[0]))
    with _axes(9, 1.2 + 0.42 * len(order)) as (axes, done):
        height = 0.8 / len(names)
        for index, name in enumerate(names):
            places = [place - index * height for place in range(len(order))]
            axes.barh(places, [share(group, name) for group in order], height * 0.9, label=name, color=_colour(index))
        axes.set_yticks([place - 0.4 + height / 2 for place in range(len(order))], order)
        axes.set_xlabel("per cent of tokens")
        axes.set_ylim(-1 + height / 2, len(order) - 0.4 + height / 2)
        _legend_above(axes)
    return done[0]


def passes_plot(whole: dict[str, Tally]) -> str:
    """Return ranges of predicted passes by setting, tokenizer and policy."""
    rows = [
        (f"{short(tokenizer)}\n{name}", counts)
        for name, tally in whole.items()
        for tokenizer, counts in tally.tokens.items()
        if counts.num_documents
    ]
    rows.reverse()
    with _axes(9, 1.2 + 0.5 * len(rows)) as (axes, done):
        for index, policy in enumerate(("exact", "canonical")):
            for place, (_, counts) in enumerate(rows):
                fewest, most = (100 * counts.share_of_passes(f"{policy}_{bound}") for bound in ("fewest", "most"))
                label = policy if not place else None
                centre = place + 0.18 - 0.36 * index
                axes.barh(centre, max(most - fewest, 0.6), 0.3, left=fewest, color=_colour(index), label=label)
        axes.axvline(100, color=_INK, linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8)
        axes.set_xlim(0, 104)
        axes.set_xlabel("per cent; left end: all drafts confirmed, right end: none")
        _legend_above(axes)
    return done[0]


def stops_plot(whole: dict[str, Tally]) -> str:
    """Return stacked bars: forced bytes, and the others by the reason why forcing had stopped."""
    names = list(whole)[::-1]
    parts = {name: _by_reason(whole[name]) for name in names}
    with _axes(9, 1.4 + 0.45 * len(names)) as (axes, done):
        left = [0.0] * len(names)
        for reason, colour in _REASONS.items():
            widths = [parts[name][reason] for name in names]
            axes.barh(names, widths, 0.6, left=left, label=reason, color=colour)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set_xlabel("per cent of bytes")
        _legend_above(axes)
    return done[0]


def runs_plot(whole: dict[str, Tally]) -> str:
    """Return how many forced runs have which length in bytes."""
    with _axes(9, 3.2) as (axes, done):
        for index, (name, tally) in enumerate(whole.items()):
            lengths = tally.bytes.run_lengths
            counts = [lengths.get(length, 0) for length in range(1, _MAX_RUN)]
            counts.append(sum(count for length, count in lengths.items() if length >= _MAX_RUN))
            axes.step(range(1, _MAX_RUN + 1), counts, where="mid", label=name, color=_colour(index))
        axes.set_xlabel(f"bytes ({_MAX_RUN}: that or more)")
        axes.set_ylabel("forced runs")
        axes.set_yscale("log")
        _legend_above(axes)
    return done[0]


def _by_reason(tally: Tally) -> dict[str, float]:
    counts = tally.bytes
    free = sum(count for live, count in counts.live.items() if live > 64)
    numbers = {"forced": counts.num_forced_bytes, "free text": free, "branch": counts.stops.get("branch", 0) - free}
    numbers |= {stop: counts.stops.get(stop, 0) for stop in ("recursion", "accepting", "whitespace")}
    return {reason: 100 * number / max(1, counts.num_bytes) for reason, number in numbers.items()}


def _legend_above(axes: Axes) -> None:
    axes.legend(ncols=6, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=9, columnspacing=1.2)


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


@contextmanager
def _axes(width: float, height: float) -> Iterator[tuple[Axes, list[str]]]:
    """Give axes to draw on; the list holds the picture afterwards."""
    import matplotlib
    from matplotlib.figure import Figure

    done: list[str] = []
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.subplots(), done
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    done.append(svg[svg.index("<svg") :].replace(_INK, "currentColor"))
