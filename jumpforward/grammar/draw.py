"""Graphs of forced paths for reading: text, Graphviz's DOT, SVG, JSON. Bytes only; tokens are drawn elsewhere."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from jumpforward.errors import OptionError
from jumpforward.grammar.paths import Edge, Node, PathGraph

_BEYOND_ASCII = 0x110000 - 0x80
_SURROGATES = 0x800  # some automata have edges for them, though no text contains them
_ESCAPES = {ord("\n"): "\\n", ord("\t"): "\\t", ord("\r"): "\\r", ord("\\"): "\\\\"}
_IN_CLASS = {ord(" "): "\\x20", ord("-"): "\\-", ord("]"): "\\]", ord("["): "\\[", ord("^"): "\\^"} | _ESCAPES


def byte_text(data: bytes) -> str:
    """Return bytes as readable text; what is not printable, or no whole character, is escaped."""
    text = data.decode(errors="surrogateescape")
    return "".join(_escaped(char) for char in text)


def _escaped(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is part of no character
        return f"\\x{code - 0xDC00:02X}"
    if code in _ESCAPES:
        return _ESCAPES[code]
    return char if char.isprintable() else "".join(f"\\x{byte:02X}" for byte in char.encode())


def class_text(values: bytes) -> str:
    """Return a class of bytes in the notation of regular expressions, with ranges: ``[0-9a]``."""
    runs = [[byte for _, byte in group] for _, group in groupby(enumerate(values), lambda item: item[1] - item[0])]
    return "[" + "".join(_run_text(run) for run in runs) + "]"


def _run_text(run: list[int]) -> str:
    low, high = _class_member(run[0]), _class_member(run[-1])
    if len(run) == 1:
        return low
    return low + high if len(run) == 2 else f"{low}-{high}"


def _class_member(byte: int) -> str:
    if byte in _IN_CLASS:
        return _IN_CLASS[byte]
    return chr(byte) if 0x21 <= byte < 0x7F else f"\\x{byte:02X}"


def edge_text(edge: Edge) -> str:
    """Return what an edge reads: text, and classes in brackets."""
    text = ""
    for is_forced, group in groupby(edge.steps, lambda step: len(step) == 1):
        steps = list(group)
        text += byte_text(b"".join(steps)) if is_forced else "".join(map(class_text, steps))
    return text


def to_text(graph: PathGraph) -> str:
    """Return the graph as lines: each node, with its edges and why they stop below it."""
    lines = [_summary(graph)]
    for number, node in enumerate(graph.nodes):
        lines.append(f"{number}{_node_note(number, node)}")
        lines += [
            f"    {label}  -> {edges[0].target} ({edges[0].stop})"
            for edges in _parallel(graph.edges_from(number))
            for label in _labels(edges)
        ]
    return "\n".join(lines)


def to_dot(graph: PathGraph) -> str:
    """Return the graph in Graphviz's language. Accepting nodes have a double line, open ones a dashed line."""
    lines = ["digraph paths {", "  rankdir=LR;", '  node [shape=circle, fontname="monospace"];']
    lines += ['  edge [fontname="monospace"];', f"  label={_quoted(_summary(graph))};"]
    for number, node in enumerate(graph.nodes):
        shape = ", shape=doublecircle" if node.is_accepting else ""
        style = ", style=dashed" if node.is_open else ""
        lines.append(f'  {number} [label="{number}"{shape}{style}];')
    for number in range(len(graph.nodes)):
        for edges in _parallel(graph.edges_from(number)):
            style = ", style=dashed" if edges[0].stop == "recursion" else ""
            label = "\n".join(_labels(edges))
            lines.append(f"  {number} -> {edges[0].target} [label={_quoted(label)}{style}];")
    return "\n".join([*lines, "}"])


def to_svg(graph: PathGraph) -> str:
    """Return the graph as an SVG picture, laid out by Graphviz's ``dot``.

    Raises:
        OptionError: ``dot`` is not installed, or fails.
    """
    program = shutil.which("dot")
    if program is None:
        raise OptionError("format", "svg", "Graphviz's program dot on the PATH, or the format dot instead")
    done = subprocess.run([program, "-Tsvg"], input=to_dot(graph), capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        raise OptionError("format", "svg", f"Graphviz to draw it, which said: {done.stderr.strip()}")
    return done.stdout


def to_json(graph: PathGraph) -> str:
    """Return the graph as JSON: nodes, edges (``steps`` holds the classes of bytes in hexadecimal), limits."""
    nodes = [
        {"id": number, "accepting": node.is_accepting, "open": node.is_open, "live": node.live.hex()}
        for number, node in enumerate(graph.nodes)
    ]
    layout = {"num_states": graph.num_states, "limits": list(graph.limits), "nodes": nodes}
    return json.dumps(layout | {"edges": [_edge_layout(edge) for edge in graph.edges]}, ensure_ascii=False, indent=2)


def _edge_layout(edge: Edge) -> dict[str, Any]:
    steps = [step.hex() for step in edge.steps]
    ends = {"source": edge.source, "target": edge.target}
    return ends | {"label": edge_text(edge), "steps": steps, "stop": edge.stop}


def _summary(graph: PathGraph) -> str:
    before = f" from {graph.num_states} states" if graph.num_states is not None else ""
    limits = f"; cut at {', '.join(graph.limits)}" if graph.limits else ""
    return f"{len(graph.nodes)} nodes, {len(graph.edges)} edges{before}{limits}"


def _node_note(number: int, node: Node) -> str:
    notes = ["start"] * (number == 0) + ["accepting"] * node.is_accepting + ["cut here"] * node.is_open
    if len(node.live) > 1:
        notes.append(f"{len(node.live)} live bytes")
    return f" ({', '.join(notes)})" if notes else ""


def _parallel(edges: Iterable[Edge]) -> Iterator[list[Edge]]:
    """Group edges with the same ends and the same reason."""
    groups: dict[tuple[int, str], list[Edge]] = {}
    for edge in edges:
        groups.setdefault((edge.target, edge.stop), []).append(edge)
    return iter(groups.values())


def _labels(edges: list[Edge]) -> list[str]:
    """Return the texts of parallel edges; all characters beyond ASCII together have one text."""
    beyond = [edge for edge in edges if edge.steps[0][0] >= 0x80]
    num_characters = sum(math.prod(map(len, edge.steps)) for edge in beyond)
    if num_characters not in (_BEYOND_ASCII, _BEYOND_ASCII - _SURROGATES):
        beyond = []
    labels = [edge_text(edge) for edge in edges if edge not in beyond]
    return labels + ["any character beyond ASCII"] * bool(beyond)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
