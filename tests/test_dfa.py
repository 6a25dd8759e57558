"""Byte automata of regular expressions and of sets of strings."""

from __future__ import annotations

import re
import warnings

import pytest
from automata import ATOMS, CLASSES, TEXT_LETTERS, patterns, shortest_distances, texts
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import languages

import jumpforward as jf
from jumpforward.grammar.dfa import Dfa
from jumpforward.grammar.pattern import XGRAMMAR, xgrammar_difference

PYTHON_ONLY = ("k", "ß", "^", "$", r"\A", r"\Z", r"\s", "(?i:k)", "(?i:[a-z])", "(?s:.)", "(?a:\\w)", "()")


def built(pattern: str) -> Dfa | None:
    """Return the automaton; None where the pattern matches no string. Patterns that are refused are not tried."""
    try:
        return Dfa.from_regex(pattern)
    except jf.GrammarError as error:
        assume("matches no string" in str(error))
        return None


@given(
    st.sampled_from(["", "(?i)", "(?s)", "(?a)"]), patterns(ATOMS + CLASSES + PYTHON_ONLY), st.lists(texts, max_size=25)
)
def test_accepts_what_fullmatch_finds(flags, pattern, samples):
    dfa = built(flags + pattern)
    compiled = re.compile(flags + pattern)
    for text in [*samples, *TEXT_LETTERS, ""]:
        expected = compiled.fullmatch(text) is not None
        assert (dfa is not None and dfa.accepts(text.encode())) == expected, text


@given(patterns((*ATOMS, *CLASSES, r"\s", r"\S")), st.lists(texts, min_size=1, max_size=8))
def test_agrees_with_xgrammar_byte_for_byte(pattern, samples):
    assume(xgrammar_difference(pattern) is None)
    dfa = Dfa.from_regex(pattern, dialect=XGRAMMAR)
    walker = jf.regex(pattern).walker()
    for text in samples:
        state = dfa.start
        walker.reset()
        for byte in text.encode():
            assert dfa.live_bytes(state) == walker.live_bytes()
            assert dfa.accepting[state] == walker.is_accepting
            state = int(dfa.delta[state, byte])
            assert walker.consume(bytes([byte])) == (state != dfa.dead)
            if state == dfa.dead:
                break


@pytest.mark.parametrize("letter", "dDwWsS")
def test_a_category_is_xgrammars_category(letter):
    dfa = Dfa.from_regex(rf"\{letter}", dialect=XGRAMMAR)
    grammar = jf.regex(rf"\{letter}")
    codes = [*range(0x300), *range(0x1680, 0x1684), *range(0x2000, 0x2070), *range(0x3000, 0x3004), 0xFEFF, 0x1F600]
    assert [dfa.accepts(chr(code).encode()) for code in codes] == [
        grammar.accepts(chr(code).encode()) for code in codes
    ]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("a^b", "ab"), ("a$b", "ab"), (r"\Aa", "Aa"), (r"a\Z", "aZ"), ("[^]a]", "ba]"), (r"\x41a", "К")],
)
def test_what_xgrammar_reads_otherwise_is_found(pattern, text):
    assert jf.regex(pattern).accepts(text.encode())
    assert xgrammar_difference(pattern) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not re.fullmatch(pattern, text)


@pytest.mark.parametrize("pattern", ["^a$", r"\^a\$b", "[$^]a", "[a^]$", r"\\A", "(a|b)", r"\\x41a", r"\x41g"])
def test_no_difference_is_seen_where_there_is_none(pattern):
    assert xgrammar_difference(pattern) is None


@given(patterns(ATOMS))
def test_every_state_is_reachable_alive_and_unlike_the_others(pattern):
    dfa = Dfa.from_regex(pattern)
    reached = {dfa.start} | {int(target) for target in dfa.delta[:-1].ravel()}
    assert reached | {dfa.dead} == set(range(dfa.num_states + 1))
    assert None not in shortest_distances(dfa)
    assert (dfa.delta[dfa.dead] == dfa.dead).all()
    assert not dfa.accepting[dfa.dead]
    kind = dfa.accepting.tolist()  # Moore's refinement: as many classes as states, the dead one included
    for _ in range(dfa.num_states + 1):
        rows = [(kind[state], *(kind[target] for target in dfa.delta[state])) for state in range(dfa.num_states + 1)]
        kind = [sorted(set(rows)).index(row) for row in rows]
    assert len(set(kind)) == dfa.num_states + 1


@given(languages)
def test_a_set_of_strings_is_the_automaton_of_its_alternatives(strings):
    dfa = Dfa.from_strings(strings)
    other = Dfa.from_regex("|".join(map(re.escape, strings)))
    assert (dfa.delta == other.delta).all()
    assert (dfa.accepting == other.accepting).all()
    assert all(dfa.accepts(text.encode()) for text in strings)


@given(st.integers(0, 0x10FFFF), st.integers(0, 0x10FFFF))
def test_a_range_of_characters_is_its_utf8(one, other):
    low, high = sorted((one, other))
    assume(not 0xD800 <= low <= high <= 0xDFFF)
    dfa = Dfa.from_regex(f"[\\U{low:08x}-\\U{high:08x}]")
    edges = (low, high, 0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF)
    for code in {near for edge in edges for near in (edge - 1, edge, edge + 1) if 0 <= near <= 0x10FFFF}:
        if not 0xD800 <= code <= 0xDFFF:
            assert dfa.accepts(chr(code).encode()) == (low <= code <= high)
    for code in (0xD800, 0xDFFF):
        assert not dfa.accepts(chr(code).encode(errors="surrogatepass"))
    assert not dfa.accepts(b"\xc0\x80")  # overlong


@pytest.mark.parametrize("pattern", ["k", "ß", "ſ", "[a-k]", "[^k]", "ı", "σ", "µ", "ﬅ", "İ", r"[\w]", "[à-þ]"])
@pytest.mark.parametrize("flags", ["(?i)", "(?ia)"])
def test_case_is_ignored_as_python_ignores_it(flags, pattern):
    dfa, compiled = Dfa.from_regex(flags + pattern), re.compile(flags + pattern)
    for code in [*range(0x600), *range(0x1E00, 0x2200), *range(0xFB00, 0xFB10), 0x10400, 0x10428]:
        assert dfa.accepts(chr(code).encode()) == (compiled.fullmatch(chr(code)) is not None), hex(code)


REFUSED = [
    ("ab(?=c)", "look-around", 2),
    ("a(?<!b)", "look-around", 1),
    (r"[\b](a)\1", "back-reference", 7),
    ("(?P<x>a)(?P=x)", "back-reference", 8),
    ("(a)?(?(1)b|c)", "conditional group", 4),
    (r"[\b]\\b\b", "word boundary", 7),
    (r"\Ba", "word boundary", 0),
    ("a*+", "possessive quantifier", 1),
    ("[*+]a(?>b)", "atomic group", 5),
    ("(?m)^a", "line anchor", 4),
    ("(?m:a$)", "line anchor", 5),
]


@pytest.mark.parametrize(("pattern", "construct", "position"), REFUSED)
def test_a_refusal_names_the_construct_and_its_place(pattern, construct, position):
    with pytest.raises(jf.GrammarError, match=f"{construct} .* at position {position} is not supported"):
        Dfa.from_regex(pattern)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a(b", "unterminated subpattern at position 1"),
        (r"[^\s\S]", "matches no string"),
        ("a$b", "matches no string"),
        ("a$\\n", "newline behind it is not supported"),
        ("(?L)a", "bad inline flags"),
        ("(" * 3000 + ")" * 3000, "nested too deeply"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_an_error(pattern, message):
    with pytest.raises(jf.GrammarError, match=message):
        Dfa.from_regex(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a|b)*a(a|b){30}", "((a{1000}){1000}){1000}", "(a?){3000}", r"\w{300}", "(.a|b.){9,400}c{400}"]
)
def test_the_limit_on_states_is_named(pattern):
    with pytest.raises(jf.GrammarError, match="max_states=500"):
        Dfa.from_regex(pattern, max_states=500)


def test_the_limit_on_states_holds_for_strings():
    with pytest.raises(jf.GrammarError, match="max_states=3"):
        Dfa.from_strings(["abcd"], max_states=3)
    assert Dfa.from_strings(["abcd"], max_states=5).num_states == 5


@pytest.mark.parametrize("strings", [[], ["a\ud800"]])
def test_strings_that_are_none_are_refused(strings):
    with pytest.raises(jf.GrammarError):
        Dfa.from_strings(strings)


def test_parentheses_and_emoji_are_themselves():
    assert Dfa.from_regex(re.escape("size (cm)")).accepts(b"size (cm)")
    assert Dfa.from_regex("[😀-🙏]{2}").live_bytes(0) == b"\xf0"
    assert Dfa.from_regex("😨(a|b)").forced(0)[0] == "😨".encode()


def test_a_long_run_needs_no_deep_stack():
    dfa = Dfa.from_regex("(ab){2000}z")
    assert dfa.forced(dfa.start)[0] == b"ab" * 2000 + b"z"
