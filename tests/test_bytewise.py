"""Walking a grammar by bytes, against an oracle that has the whole language as a set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import grammars, languages, regexes

import jumpforward as jf


def forced_by(language, done):
    """The longest common prefix of all completions, cut where the output may end: by looking at all of them."""
    rests = [word[len(done) :] for word in language if word.startswith(done)]
    common = rests[0]
    while not all(rest.startswith(common) for rest in rests):
        common = common[:-1]
    return next((common[:length] for length in range(len(common)) if common[:length] in rests), common)


def check_everywhere(grammar, language):
    """Compare a walker with the oracle at every byte of every word."""
    for word in sorted(language)[:12]:
        walker = grammar.walker()
        for count in range(len(word) + 1):
            done = word[:count]
            assert walker.forced_bytes() == forced_by(language, done), done
            assert walker.is_accepting == (done in language)
            assert walker.live_bytes() == bytes(
                sorted({other[count] for other in language if other[:count] == done and len(other) > count})
            )
            assert walker.consume(word[count : count + 1])


@given(languages)
def test_law_1_forced_bytes_of_a_choice(language):
    check_everywhere(jf.choice(language), {word.encode() for word in language})


@given(regexes)
def test_law_1_forced_bytes_of_a_regex(drawn):
    pattern, language = drawn
    check_everywhere(jf.regex(pattern), {word.encode() for word in language})


@given(st.lists(st.text("ab霍霏", max_size=4), min_size=1, max_size=5, unique=True))
def test_law_1_forced_bytes_of_a_schema(values):
    words = {f'{{"霍": "{value}"}}'.encode() for value in values}
    schema = {"type": "object", "properties": {"霍": {"enum": values}}, "required": ["霍"]}
    check_everywhere(jf.json_schema(schema), words)


@pytest.mark.parametrize(
    ("grammar", "done", "forced"),
    [
        (lambda: jf.regex("ab(cde)?"), "", "ab"),
        (lambda: jf.regex("ab(cde)?"), "ab", ""),
        (lambda: jf.regex("ab(cde)?"), "abc", "de"),
        (lambda: jf.ebnf('root ::= "ab" | "abcde"'), "", "ab"),
        (lambda: jf.ebnf('root ::= "ab" | "abcde"'), "abc", "de"),
        (lambda: jf.regex("(ab){200}z"), "", "ab" * 200 + "z"),
        (lambda: jf.regex("a+b"), "", "a"),
        (lambda: jf.regex("a*"), "", ""),
        (lambda: jf.ebnf('root ::= "(" root ")" | "x"'), "((x", "))"),
        (lambda: jf.lark('start: "ab" "c"?'), "", "ab"),
    ],
)
def test_cases_1_and_4_what_is_forced(grammar, done, forced):
    walker = grammar().walker()
    assert walker.consume(done.encode())
    assert walker.forced_bytes() == forced.encode()


@pytest.mark.parametrize(
    ("pattern", "done", "forced"),
    [
        ("霍格沃茨|霍比特", b"", "霍".encode() + b"\xe6"),
        ("霍格沃茨|霍比特", "霍".encode() + b"\xe6\xa0", "格沃茨".encode()[2:]),
        ("x😀|x😁", b"", b"x\xf0\x9f\x98"),
        ("😨(a|b)", b"", "😨".encode()),
        ("[😀-🙏]{2}", b"", b"\xf0\x9f"),
        ("é?", b"", b""),
    ],
)
def test_cases_5_and_26_forced_to_the_byte(pattern, done, forced):
    walker = jf.regex(pattern).walker()
    assert walker.consume(done)
    assert walker.forced_bytes() == forced


def observe(walker):
    return walker.is_accepting, walker.live_bytes(), walker.forced_bytes()


@given(grammars, st.data())
def test_law_5_queries_and_refused_bytes_change_nothing(grammar, data):
    walker = grammar.walker()
    for _ in range(6):
        before = observe(walker)
        assert observe(walker) == before
        live = before[1]
        assert not walker.consume(live[:1] + b"\xff")  # no text has that byte
        assert not walker.consume(before[2] + b"\xff")
        assert all(not walker.consume(bytes([value])) for value in range(256) if value not in live)
        assert observe(walker) == before
        if not live:
            break
        assert walker.consume(bytes([data.draw(st.sampled_from(live))]))


@given(grammars, st.data())
def test_law_5_rollback_undoes_calls_one_by_one(grammar, data):
    walker = grammar.walker()
    seen = [observe(walker)]
    for _ in range(data.draw(st.integers(1, 8))):
        run = seen[-1][2] or bytes([data.draw(st.sampled_from(seen[-1][1]))] if seen[-1][1] else [])
        if not run:
            break
        assert walker.consume(run)
        seen.append(observe(walker))
    while len(seen) > 1:
        count = data.draw(st.integers(1, len(seen) - 1))
        walker.rollback(count)
        del seen[-count:]
        assert observe(walker) == seen[-1]


@given(grammars, st.data())
def test_law_5_a_fork_goes_its_own_way(grammar, data):
    walker = grammar.walker()
    walker.consume(walker.forced_bytes())
    before = observe(walker)
    fork = walker.fork()
    assert observe(fork) == before
    if before[1]:
        fork.consume(bytes([data.draw(st.sampled_from(before[1]))]))
        assert observe(walker) == before
        fork.rollback(1)
    assert observe(fork) == before
    fork.reset()
    assert observe(fork) == observe(grammar.walker())


def test_nothing_is_a_move_that_needs_no_undoing():
    walker = jf.choice(["ab"]).walker()
    assert walker.consume(b"a")
    assert walker.consume(b"")
    walker.rollback(0)
    walker.rollback(1)
    assert walker.forced_bytes() == b"ab"
