"""What ``jumpforward inspect`` prints: a grammar's compressed graph, and a document's way through it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jumpforward.engine.pretrained import load_tokenizer
from jumpforward.grammar import draw
from jumpforward.grammar.draw import byte_text, class_text
from jumpforward.grammar.paths import PathGraph, compress
from jumpforward.grammar.segmentations import lattice, num_segmentations, segmentations
from jumpforward.grammar.spec import Grammar
from jumpforward.grammar.unfolding import unfold
from jumpforward.matching.automaton import automaton_for, dfa_for
from jumpforward.report.overlay import Overlay, Tokens
from jumpforward.report.walk import Walk

_FORCED, _CHOSEN = "cyan", "bold yellow"
_MAX_SHOWN = 12  # stops of one kind in a list, members of a class


def graph_of(grammar: Grammar, max_depth: int) -> tuple[PathGraph, str]:
    """Return a grammar's compressed graph, and how it was made, as a sentence."""
    dfa = dfa_for(grammar)
    if isinstance(dfa, str):
        return unfold(grammar.walker(), max_depth=max_depth), f"unfolded from xgrammar's rules: {dfa}"
    return compress(dfa), "compressed from a minimal automaton over bytes"


def tokens_of(name: str | None) -> Tokens:
    """Return the tokenizer of a model by name, for looking through it; None for the default model's."""
    return Tokens(load_tokenizer(name))


def graph_text(grammar: Grammar, max_depth: int, form: str, tokens: Tokens | None) -> str:
    """Return a grammar's graph as text, DOT, SVG or JSON; text and JSON with the tokens of forced text, if given."""
    graph, how = graph_of(grammar, max_depth)
    if form == "dot":
        return draw.to_dot(graph)
    if form == "svg":
        return draw.to_svg(graph)
    overlays = dict(_overlays(graph, tokens)) if tokens is not None else {}
    if form == "json":
        layout = json.loads(draw.to_json(graph)) | {"how": how}
        if tokens is not None:
            layout["tokens"] = {text: overlay.layout() for text, overlay in overlays.items()}
        return json.dumps(layout, ensure_ascii=False, indent=2)
    lines = [how, *([matcher_text(grammar, tokens)] if tokens is not None else []), draw.to_text(graph)]
    if overlays:
        lines += ["", "tokens of forced text (| ends what is stable)"]
        lines += [f"    {text}   {_overlay_text(overlay)}" for text, overlay in overlays.items()]
    return "\n".join(lines)


def matcher_text(grammar: Grammar, tokens: Tokens) -> str:
    """Return which matcher a request with this grammar gets, and why, as a sentence."""
    compiled = automaton_for(grammar, tokens.vocabulary)
    if isinstance(compiled, str):
        return f"matched by xgrammar: {compiled}"
    size_mb = compiled.index.num_bytes / 1e6
    return f"matched by an automaton of {compiled.dfa.num_states} states with a token index of {size_mb:.1f} MB"


def _overlays(graph: PathGraph, tokens: Tokens) -> Iterator[tuple[str, Overlay]]:
    """Yield each edge's forced text with its tokens."""
    for edge in graph.edges:
        source = graph.nodes[edge.source]
        # Behind a place with one way on, such as the start or a join, the first byte is forced too.
        forced = edge.steps if len(source.live) == 1 and not source.is_accepting else edge.steps[1:]
        if not all(len(step) == 1 for step in forced):
            continue
        data = b"".join(forced)
        overlay = tokens.over(data) if data else None
        if overlay is not None:
            yield byte_text(data), overlay


def _overlay_text(overlay: Overlay) -> str:
    parts = [*map(byte_text, overlay.stable), "|", *map(byte_text, overlay.withheld)]
    return " · ".join(parts) + (f"   withheld: {overlay.reason}" if overlay.withheld else "")


def segmentation_text(text: str, tokens: Tokens, form: str) -> str:
    """Return the ways to write a text in tokens, and the graph of them."""
    graph = lattice(text.encode(), tokens.pieces)
    if form == "text":
        ways = [" ".join(map(byte_text, way)) for way in segmentations(graph)]
        return "\n".join([f"{num_segmentations(graph)} segmentations of {text!r}", *ways])
    return {"dot": draw.to_dot, "svg": draw.to_svg, "json": draw.to_json}[form](graph)


def walk_layout(walks: dict[str, Walk], tokens: Tokens | None) -> dict[str, Any]:
    """Return walks of one document under several whitespace policies as JSON."""
    return {name: found.layout() | _token_layout(found, tokens) for name, found in walks.items()}


def _token_layout(found: Walk, tokens: Tokens | None) -> dict[str, Any]:
    lengths = tokens.lengths(found.data) if tokens is not None else []
    if not lengths:
        return {}
    return {"num_tokens": len(lengths), "num_forced_tokens": found.num_forced_tokens(lengths)}


def walk_view(walks: dict[str, Walk], tokens: Tokens | None) -> RenderableType:
    """Return walks for a terminal: the document in colours, why forcing stopped, and the shares side by side."""
    legend = Text.assemble(("forced", _FORCED), "  ", ("chosen", _CHOSEN))
    return Group(*(_document(name, found) for name, found in walks.items()), legend, _shares(walks, tokens))


def _document(name: str, found: Walk) -> Text:
    text = Text(f"{name}: ", "bold")
    for is_forced, data in found.spans():
        text.append(byte_text(data), _FORCED if is_forced else _CHOSEN)
    if not found.is_complete:
        text.append(f"\n  rejected at byte {len(found.forced)} of {len(found.data)}: {_rejection(found)}", "red")
    for stop, places in _places(found).items():
        text.append(f"\n  {stop}: {places}", "dim")
    return text


def _rejection(found: Walk) -> str:
    came = found.data[len(found.forced) : len(found.forced) + 1]
    legal = class_text(found.expected) if found.expected else "the end"
    return f"{byte_text(came)!r} came, legal was {legal}" if came else f"it ends here, legal was {legal}"


def _places(found: Walk) -> dict[str, str]:
    """Return for each reason to stop the places where it stopped and out of how many bytes was chosen."""
    by_stop: dict[str, list[str]] = {}
    for choice in found.choices:
        by_stop.setdefault(choice.stop, []).append(f"{choice.place} (1 of {len(choice.live)})")
    return {
        stop: ", ".join(places[:_MAX_SHOWN])
        + (f", {len(places) - _MAX_SHOWN} more" if len(places) > _MAX_SHOWN else "")
        for stop, places in by_stop.items()
    }


def _shares(walks: dict[str, Walk], tokens: Tokens | None) -> Table:
    table = Table("whitespace", "forced bytes", "forced tokens", "choices", "stops")
    for name, found in walks.items():
        layout = _token_layout(found, tokens)
        share = f"{layout['num_forced_tokens']} of {layout['num_tokens']}" if layout else "-"
        stops = Counter(choice.stop for choice in found.choices)
        table.add_row(
            name,
            f"{100 * found.share_forced_bytes:.0f} %",
            share,
            str(len(found.choices)),
            ", ".join(f"{count} {stop}" for stop, count in stops.most_common()),
        )
    return table
