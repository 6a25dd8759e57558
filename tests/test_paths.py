"""The compressor: forced paths as edges, and the same view of grammars that nest."""

from __future__ import annotations

import pytest
from automata import ATOMS, CLASSES, common_prefix, members, patterns
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import languages

import jumpforward as jf
from jumpforward.grammar.dfa import Dfa
from jumpforward.grammar.minimal import minimised
from jumpforward.grammar.paths import PathGraph, compress
from jumpforward.grammar.pattern import xgrammar_difference
from jumpforward.grammar.unfolding import forced_edge, unfold

SEED = r'\{"name":"(Paul|John)","age":(20|30)\}'
NESTED = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"const": 1}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["v", "next"],
        }
    },
}


def edges(graph: PathGraph) -> list[tuple[int, bytes | tuple[bytes, ...], int, str]]:
    return [(edge.source, edge.string or edge.steps, edge.target, edge.stop) for edge in graph.edges]


def expanded(graph: PathGraph) -> tuple[list[dict[int, int]], set[int]]:
    """Return the automaton that a graph says, every edge a chain of states again: edges and accepting states."""
    rows = [{} for _ in graph.nodes]
    for edge in graph.edges:
        state = edge.source
        for place, step in enumerate(edge.steps):
            is_last = place == len(edge.steps) - 1
            target = edge.target if is_last else len(rows)
            rows += [] if is_last else [{}]
            rows[state] |= dict.fromkeys(step, target)
            state = target
    return rows, {number for number, node in enumerate(graph.nodes) if node.is_accepting}


# -- law 1 --


@given(languages)
def test_forced_bytes_are_the_common_prefix_up_to_where_the_output_may_end(strings):
    data = [text.encode() for text in strings]
    prefix = common_prefix(data)
    assert Dfa.from_strings(strings).forced(0)[0] == prefix
    assert all(len(item) >= len(prefix) for item in data)


@given(patterns(ATOMS), st.data())
def test_forced_bytes_of_every_state_agree_with_the_walker(pattern, data):
    assume(xgrammar_difference(pattern) is None)
    dfa, walker = Dfa.from_regex(pattern), jf.regex(pattern).walker()
    state = dfa.start
    for _ in range(12):
        assert dfa.forced(state)[0] == walker.forced_bytes()
        live = dfa.live_bytes(state)
        if not live:
            break
        byte = data.draw(st.sampled_from(live))
        walker.consume(bytes([byte]))
        state = int(dfa.delta[state, byte])


# -- law 2 --


@given(patterns(ATOMS + CLASSES), st.booleans())
def test_compressing_loses_nothing(pattern, keep_joins):
    dfa = Dfa.from_regex(pattern)
    rows, accepting = expanded(compress(dfa, keep_joins=keep_joins))
    assert not keep_joins or len(rows) == dfa.num_states  # shared text stays shared, and is written once
    other = Dfa._numbered(*minimised(rows, accepting))
    assert (other.delta == dfa.delta).all()
    assert (other.accepting == dfa.accepting).all()


@given(languages, st.booleans())
def test_the_graph_accepts_exactly_the_strings(strings, keep_joins):
    graph = compress(Dfa.from_strings(strings), keep_joins=keep_joins)
    tried = {text[:end] + tail for text in strings for end in range(len(text) + 1) for tail in ("", "a", text)}
    assert {text for text in tried if graph.accepts(text.encode())} == set(strings)


@given(patterns(ATOMS + CLASSES), st.booleans())
def test_an_edge_ends_where_its_reason_says_and_nowhere_before(pattern, keep_joins):
    dfa = Dfa.from_regex(pattern)
    graph = compress(dfa, keep_joins=keep_joins)
    for edge in graph.edges:
        assert all(len(step) == 1 for step in edge.steps[1:])
        node = graph.nodes[edge.target]
        kind = "accepting" if node.is_accepting else "join" if len(node.live) == 1 else "branch"
        assert edge.stop == kind
        assert keep_joins or kind != "join"


# -- golden graphs --


def test_the_seed_example():
    graph = compress(Dfa.from_regex(SEED))
    assert edges(graph) == [
        (0, b'{"name":"', 1, "branch"),
        (1, b"John", 2, "join"),
        (1, b"Paul", 2, "join"),
        (2, b'","age":', 3, "branch"),
        (3, (b"23", b"0", b"}"), 4, "accepting"),
    ]
    assert graph.num_states == 28
    people = [f'{{"name":"{name}","age":{age}}}' for name in ("Paul", "John") for age in (20, 30)]
    assert members(Dfa.from_regex(SEED), 40) == {text.encode() for text in people}
    assert all(graph.accepts(text.encode()) for text in people)


def test_the_seed_example_without_joins():
    assert edges(compress(Dfa.from_regex(SEED), keep_joins=False)) == [
        (0, b'{"name":"', 1, "branch"),
        (1, b'John","age":', 2, "branch"),
        (1, b'Paul","age":', 2, "branch"),
        (2, (b"23", b"0", b"}"), 3, "accepting"),
    ]


DIGITS = (b"0123456789",)
GOLDEN = {
    "ab(cde)?": [(0, b"ab", 1, "accepting"), (1, b"cde", 2, "accepting")],
    r"([0-9]*)?\.?[0-9]*": [
        (0, b".", 1, "accepting"),
        (0, DIGITS, 0, "accepting"),
        (1, DIGITS, 1, "accepting"),
    ],
    r"[0-9]+(?:\.[0-9]+)?": [
        (0, DIGITS, 1, "accepting"),
        (1, b".", 2, "branch"),
        (1, DIGITS, 1, "accepting"),
        (2, DIGITS, 3, "accepting"),
        (3, DIGITS, 3, "accepting"),
    ],
    "霍格沃茨|霍比特": [
        (0, "霍".encode() + b"\xe6", 1, "branch"),
        (1, "格沃茨".encode()[1:], 2, "accepting"),
        (1, "比特".encode()[1:], 2, "accepting"),
    ],
    r'\{[ \n]*"a"': [(0, b"{", 1, "whitespace"), (1, (b"\n ",), 1, "whitespace"), (1, b'"a"', 2, "accepting")],
    r"a(?: |b)c": [(0, b"a", 1, "branch"), (1, (b" b", b"c"), 2, "accepting")],
    "x😀|x😁": [(0, b"x\xf0\x9f\x98", 1, "branch"), (1, (b"\x80\x81",), 2, "accepting")],
}


@pytest.mark.parametrize("pattern", GOLDEN)
def test_golden_graphs(pattern):
    assert edges(compress(Dfa.from_regex(pattern))) == GOLDEN[pattern]


@pytest.mark.parametrize("strings", [["ab", "abcde"], ["alpha", "alphabet"], ["1", "12", '"1"']])
def test_forcing_stops_where_one_value_begins_another(strings):
    dfa = Dfa.from_strings(strings)
    shortest = min(strings, key=len)
    state = dfa.run(shortest.encode()[:1])
    assert dfa.forced(state) == (shortest.encode()[1:], dfa.run(shortest.encode()))


def test_a_long_forced_run_is_one_edge():
    (edge,) = compress(Dfa.from_regex("(ab){200}z")).edges
    assert edge.string == b"ab" * 200 + b"z"


# -- grammars of any kind --


@given(languages)
def test_an_unfolded_set_of_strings_is_whole(strings):
    graph = unfold(jf.choice(strings).walker(), max_depth=100, max_nodes=1000)
    tried = {text[:end] + tail for text in strings for end in range(len(text) + 1) for tail in ("", "a")}
    assert {text for text in tried if graph.accepts(text.encode())} == set(strings)
    assert not graph.limits
    assert all(edge.stop != "recursion" for edge in graph.edges)


@given(languages)
def test_looking_does_not_move_the_walker(strings):
    walker = jf.choice(strings).walker()
    forced_edge(walker)
    unfold(walker, max_depth=3)
    assert walker.forced_bytes() == common_prefix([text.encode() for text in strings])


def test_a_nested_schema_leads_back_to_itself():
    graph = unfold(jf.json_schema(NESTED).walker())
    forced = b'{"v": 1, "next": '
    assert edges(graph) == [(0, forced, 1, "branch"), (1, b"null}", 2, "accepting"), (1, forced, 1, "recursion")]


def test_a_nested_schema_is_forced_at_every_level():
    walker = jf.json_schema(NESTED).walker()
    for _ in range(2000):  # and nothing here recurses with the depth
        assert walker.consume(b'{"v": 1, "next": ')
    edge = forced_edge(walker)
    assert (edge.forced, edge.stop, edge.live) == (b"", "branch", b"n{")
    walker.consume(b"null")
    assert forced_edge(walker).forced == b"}" * 2000


@pytest.mark.parametrize(
    ("grammar", "forced", "stop", "live"),
    [
        (jf.choice(["ab", "abcde"]), b"ab", "accepting", b"c"),
        (jf.choice(["ab"]), b"ab", "accepting", b""),
        (jf.choice(["a b", "axb"]), b"a", "branch", b" x"),
        (jf.json_schema({"const": 1}, whitespace="flexible"), b"1", "accepting", b""),
        (
            jf.json_schema({"type": "object", "properties": {"a": {}}, "required": ["a"]}, whitespace="flexible"),
            b"{",
            "whitespace",
            b'\t\n\r "',
        ),
        (
            jf.json_schema({"type": "object", "properties": {"a": {"type": "boolean"}}}, whitespace="flexible"),
            b"{",
            "branch",
            b'\t\n\r "}',
        ),
    ],
)
def test_the_reason_for_a_stop(grammar, forced, stop, live):
    edge = forced_edge(grammar.walker())
    assert (edge.forced, edge.stop, edge.live) == (forced, stop, live)


def test_equal_items_in_a_row_are_not_recursion():
    schema = {"type": "array", "prefixItems": [{"enum": ["x", "yz"]}] * 3, "minItems": 3}
    graph = unfold(jf.json_schema(schema).walker())
    assert all(edge.stop != "recursion" for edge in graph.edges)
    assert graph.accepts(b'["x", "yz", "x"]')
    assert not graph.accepts(b'["x", "yz"]')


def test_a_choice_of_bytes_that_lead_to_different_places_is_not_one_edge():
    grammar = jf.ebnf('root ::= "a" [xy] "c" | "b" [xy] "d"')
    graph = unfold(grammar.walker())
    accepted = [text for text in ("axc", "ayc", "bxd", "byd", "axd", "bxc") if graph.accepts(text.encode())]
    assert accepted == ["axc", "ayc", "bxd", "byd"]


def test_a_character_whose_continuation_does_not_matter_is_one_edge():
    graph = unfold(jf.json_schema({"type": "string"}).walker())
    beyond = [edge for edge in graph.edges if edge.steps[0][0] >= 0x80]
    assert {edge.target for edge in beyond} == {1}
    assert {len(edge.steps) for edge in beyond} == {2, 3, 4}


@pytest.mark.parametrize("limits", [{"max_depth": 2}, {"max_nodes": 6}])
def test_a_limit_that_was_met_is_stated(limits):
    graph = unfold(jf.json_schema({"enum": ["abc", "abd", "aec", "b", "cd", "ce"]}).walker(), **limits)
    assert graph.limits == tuple(f"{name}={value}" for name, value in limits.items())
    leaves = {number for number, node in enumerate(graph.nodes) if node.is_open}
    assert leaves
    assert leaves.isdisjoint(edge.source for edge in graph.edges)
