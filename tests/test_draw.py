"""Graphs as text, DOT, SVG and JSON."""

from __future__ import annotations

import json
import shutil

import pytest

import jumpforward as jf
from jumpforward.grammar import draw
from jumpforward.grammar.dfa import Dfa
from jumpforward.grammar.paths import Edge, compress
from jumpforward.grammar.segmentations import lattice, num_segmentations, segmentations
from jumpforward.grammar.unfolding import unfold

SEED = compress(Dfa.from_regex(r'\{"name":"(Paul|John)","age":(20|30)\}'))
SUBSTRINGS = {b"name"[start:end] for start in range(4) for end in range(start + 1, 5)}

SEED_TEXT = """\
5 nodes, 5 edges from 28 states
0 (start)
    {"name":"  -> 1 (branch)
1 (2 live bytes)
    John  -> 2 (join)
    Paul  -> 2 (join)
2
    ","age":  -> 3 (branch)
3 (2 live bytes)
    [23]0}  -> 4 (accepting)
4 (accepting)"""

SEED_DOT = """\
digraph paths {
  rankdir=LR;
  node [shape=circle, fontname="monospace"];
  edge [fontname="monospace"];
  label="5 nodes, 5 edges from 28 states";
  0 [label="0"];
  1 [label="1"];
  2 [label="2"];
  3 [label="3"];
  4 [label="4", shape=doublecircle];
  0 -> 1 [label="{\\"name\\":\\""];
  1 -> 2 [label="John\\nPaul"];
  2 -> 3 [label="\\",\\"age\\":"];
  3 -> 4 [label="[23]0}"];
}"""

LATTICE_TEXT = """\
5 nodes, 10 edges
0 (start)
    n  -> 1 (branch)
    na  -> 2 (branch)
    nam  -> 3 (branch)
    name  -> 4 (accepting)
1
    a  -> 2 (branch)
    am  -> 3 (branch)
    ame  -> 4 (accepting)
2
    m  -> 3 (branch)
    me  -> 4 (accepting)
3
    e  -> 4 (accepting)
4 (accepting)"""


def test_the_seed_example_as_text():
    assert draw.to_text(SEED) == SEED_TEXT


def test_the_seed_example_as_dot():
    assert draw.to_dot(SEED) == SEED_DOT


def test_the_seed_example_as_json():
    layout = json.loads(draw.to_json(SEED))
    assert layout["num_states"] == 28
    assert layout["edges"][4] == {
        "source": 3,
        "target": 4,
        "label": "[23]0}",
        "steps": ["3233", "30", "7d"],
        "stop": "accepting",
    }
    assert layout["nodes"][3] == {"id": 3, "accepting": False, "open": False, "live": "3233"}


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ((b"a", b"\n", b"\\"), r"a\n\\"),
        (("霍".encode()[:1],), r"\xE9"),
        (tuple(bytes([byte]) for byte in "霍😀\u200b\x00".encode()), r"霍😀\xE2\x80\x8B\x00"),
        ((b"0123456789",), "[0-9]"),
        ((b"ab",), "[ab]"),
        ((b" -\\]^",), r"[\x20\-\\-\^]"),
        ((bytes(range(0x80, 0xC0)), b"x"), r"[\x80-\xBF]x"),
    ],
)
def test_an_edge_is_readable(steps, text):
    assert draw.edge_text(Edge(0, steps, 1, "branch")) == text


def test_characters_beyond_ascii_are_one_line():
    text = draw.to_text(unfold(jf.json_schema({"type": "string"}).walker()))
    assert text.count("any character beyond ASCII  -> 1 (recursion)") == 1
    assert "any character" not in draw.to_text(compress(Dfa.from_regex("[é-ü]")))


def test_limits_and_cut_nodes_are_shown():
    graph = unfold(jf.json_schema({"enum": ["abc", "abd", "b"]}).walker(), max_depth=1)
    assert draw.to_text(graph).startswith("2 nodes, 1 edges; cut at max_depth=1")
    assert "cut here" in draw.to_text(graph)
    assert '1 [label="1", style=dashed]' in draw.to_dot(graph)


def test_without_graphviz_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(jf.OptionError, match="dot on the PATH, or the format dot"):
        draw.to_svg(SEED)


def test_graphviz_gets_the_dot_text(tmp_path, monkeypatch):
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\nprintf '<svg>'; cat\n")
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _: str(program))
    assert draw.to_svg(SEED) == "<svg>" + SEED_DOT


def test_a_failure_of_graphviz_is_told(tmp_path, monkeypatch):
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\necho 'no layout' >&2; exit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _: str(program))
    with pytest.raises(jf.OptionError, match="no layout"):
        draw.to_svg(SEED)


def test_the_eight_segmentations_of_name():
    graph = lattice(b"name", SUBSTRINGS)
    assert draw.to_text(graph) == LATTICE_TEXT
    assert num_segmentations(graph) == 8
    assert [b"|".join(pieces).decode() for pieces in segmentations(graph)] == [
        "n|a|m|e", "n|a|me", "n|am|e", "n|ame", "na|m|e", "na|me", "nam|e", "name",
    ]  # fmt: skip


def test_pieces_on_no_way_through_are_left_out():
    graph = lattice(b"abc", {b"a", b"ab", b"bc", b"b"})
    assert [edge.string for edge in graph.edges] == [b"a", b"bc"]
    assert num_segmentations(lattice(b"abc", {b"ab"})) == 0
    assert segmentations(graph, max_count=1) == [(b"a", b"bc")]
