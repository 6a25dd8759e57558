"""The matcher's protocol, over drawn grammars and vocabularies."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import weakref

import pytest
import xgrammar
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import grammars, languages, pieces

import jumpforward as jf
from jumpforward.grammar.bytewise import np_bits
from jumpforward.matching.compiler import CompilerPool, GrammarCompiler
from jumpforward.matching.matcher import Matcher
from jumpforward.testing import toy_tokenizer
from jumpforward.vocab.vocabulary import Vocabulary

PADDING = 37  # ids behind the vocabulary, as models have them


def compiler_of(drawn, *, single_bytes=range(256), more_ends=()):
    tokenizer = toy_tokenizer(drawn, single_bytes=single_bytes)
    ends = [tokenizer.eos_token_id, *more_ends]
    return GrammarCompiler(Vocabulary.from_tokenizer(tokenizer, width=len(tokenizer) + PADDING, end_ids=ends))


def legal(matcher, width):
    """The ids that the matcher's own mask permits; no row beside it is touched."""
    bitmask = xgrammar.allocate_token_bitmask(3, width)
    bitmask.fill_(-1)
    matcher.fill_bitmask(bitmask, 1)
    assert bitmask[[0, 2]].eq(-1).all()
    return set(np_bits(bitmask[1].numpy())[:width].nonzero()[0].tolist())


def observe(matcher, width):
    return legal(matcher, width), matcher.forced_bytes(), matcher.is_accepting, matcher.is_terminated


def walk(matcher, width, data, num_steps):
    """Yield at every place of a random walk, its start included."""
    yield []
    done = []
    for _ in range(num_steps):
        choices = sorted(legal(matcher, width))
        if not choices:
            return
        token = data.draw(st.sampled_from(choices[:3] + choices[-3:]))
        assert matcher.consume(token)
        done.append(token)
        yield done


@given(grammars, pieces, st.data())
def test_law_4_mask_is_exactly_what_consume_accepts(grammar, drawn, data):
    compiler = compiler_of(drawn)
    vocabulary = compiler.vocabulary
    matcher: Matcher = compiler.compile(grammar).matcher()
    for _ in walk(matcher, vocabulary.width, data, 5):
        allowed = legal(matcher, vocabulary.width)
        accepted = {token for token in range(vocabulary.width) if matcher.fork().consume(token)}
        assert allowed == accepted
        ends = allowed & vocabulary.special_ids
        assert ends == (set(vocabulary.end_ids) if matcher.is_accepting and not matcher.is_terminated else set())
        assert max(allowed, default=0) < vocabulary.num_tokens


@given(grammars, pieces, st.data())
def test_a_choice_is_known_only_where_several_tokens_are_legal(grammar, drawn, data):
    compiler = compiler_of(drawn)
    width = compiler.vocabulary.width
    for matcher in (compiler.compile(grammar).matcher(), compiler.pushdown(grammar).matcher()):
        for _ in walk(matcher, width, data, 5):
            before = observe(matcher, width)
            assert not matcher.has_choice() or len(before[0]) > 1
            assert observe(matcher, width) == before


def test_a_choice_is_known_inside_a_string_if_the_vocabulary_spells_any_text():
    grammar = jf.json_schema({"type": "string"})
    for single_bytes, expected in ((range(16, 250), True), ([*range(127), *range(129, 256)], False)):
        matcher = compiler_of(["ab"], single_bytes=single_bytes).compile(grammar).matcher()
        assert not matcher.has_choice()  # the quote is forced
        assert matcher.consume(single_bytes.index(ord('"')))
        assert matcher.has_choice() == expected


def test_a_choice_is_known_on_an_automaton_where_its_language_has_one():
    matcher = compiler_of(["key", 'k"']).compile(jf.regex('"k" [0-9A-Za-z]{3}')).matcher()
    known = []
    for token in b'"k" abc':
        known.append(matcher.has_choice())
        assert matcher.consume(token)
    assert known == [False, False, False, False, True, True, True]  # `"` and `k"` are legal behind `"`, and forced
    assert not matcher.has_choice()  # the end


@given(languages, pieces, st.data())
def test_law_4_mask_is_what_the_language_permits(language, drawn, data):
    compiler = compiler_of(drawn)
    vocabulary = compiler.vocabulary
    words = {word.encode() for word in language}
    matcher = compiler.compile(jf.choice(language)).matcher()
    for ids in walk(matcher, vocabulary.width, data, 6):
        if matcher.is_terminated:
            break
        done = vocabulary.text_bytes(ids)
        expected = {
            token
            for token, spelled in enumerate(vocabulary.token_bytes)
            if spelled and any(word.startswith(done + spelled) for word in words)
        }
        assert matcher.is_accepting == (done in words)
        assert legal(matcher, vocabulary.width) == expected | set(vocabulary.end_ids if done in words else ())


@pytest.mark.parametrize("token", [-1, -300, 10_000, 2**40])
def test_law_4_ids_outside_the_vocabulary_are_refused(token):
    matcher = compiler_of(["ab"]).compile(jf.choice(["ab"])).matcher()
    assert not matcher.consume(token)
    assert matcher.forced_bytes() == b"ab"


@given(grammars, pieces, st.data())
def test_law_5_queries_and_refused_tokens_change_nothing(grammar, drawn, data):
    compiler = compiler_of(drawn)
    width = compiler.vocabulary.width
    matcher = compiler.compile(grammar).matcher()
    for _ in walk(matcher, width, data, 5):
        before = observe(matcher, width)
        refused = [token for token in range(width) if token not in before[0]]
        assert not any(matcher.consume(token) for token in refused)
        assert matcher.live_bytes() == (b"" if matcher.is_terminated else matcher.live_bytes())
        assert observe(matcher, width) == before


@given(grammars, pieces, st.data())
def test_law_5_rollback_undoes_tokens_bit_for_bit(grammar, drawn, data):
    compiler = compiler_of(drawn)
    width = compiler.vocabulary.width
    matcher = compiler.compile(grammar).matcher()
    seen = [observe(matcher, width) for _ in walk(matcher, width, data, 8)]
    while len(seen) > 1:
        count = data.draw(st.integers(1, len(seen) - 1))
        matcher.rollback(count)
        del seen[-count:]
        assert observe(matcher, width) == seen[-1]


@given(grammars, pieces, st.data())
def test_law_5_a_fork_goes_its_own_way(grammar, drawn, data):
    compiler = compiler_of(drawn)
    width = compiler.vocabulary.width
    matcher = compiler.compile(grammar).matcher()
    start = observe(matcher, width)
    num_steps = len([*walk(matcher, width, data, 3)]) - 1
    before = observe(matcher, width)
    fork = matcher.fork()
    assert observe(fork, width) == before
    further = len([*walk(fork, width, data, 2)]) - 1
    assert observe(matcher, width) == before
    fork.rollback(further + num_steps)
    assert observe(fork, width) == start
    assert observe(matcher, width) == before
    matcher.rollback(num_steps)
    assert observe(matcher, width) == start
    assert matcher.live_bytes() == fork.live_bytes() == grammar.walker().live_bytes()


@given(grammars, pieces, st.data())
def test_law_1_the_matcher_forces_what_a_walk_over_bytes_forces(grammar, drawn, data):
    compiler = compiler_of(drawn)
    vocabulary = compiler.vocabulary
    matcher = compiler.compile(grammar).matcher()
    for ids in walk(matcher, vocabulary.width, data, 6):
        walker = grammar.walker()
        assert walker.consume(vocabulary.text_bytes(ids))
        if matcher.is_terminated:
            assert matcher.forced_bytes() == matcher.live_bytes() == b""
        else:
            assert matcher.forced_bytes() == walker.forced_bytes()
            assert matcher.live_bytes() == walker.live_bytes()
            assert matcher.is_accepting == walker.is_accepting


@pytest.mark.parametrize(
    ("pattern", "done", "forced"),
    [
        ("霍格沃茨|霍比特", b"", "霍".encode() + b"\xe6"),
        ("霍格沃茨|霍比特", "霍".encode() + b"\xe6\xa0", "格沃茨".encode()[2:]),
        ("😨(a|b)", b"\xf0", "😨".encode()[1:]),
        ("[😀-🙏]{2}", b"", b"\xf0\x9f"),
        ("[😀-🙏]{2}", b"\xf0", b"\x9f"),
        ("[^a]x", b"\xf0", b""),
    ],
)
def test_case_26_forced_bytes_in_the_middle_of_a_character(pattern, done, forced):
    matcher = compiler_of([]).compile(jf.regex(pattern)).matcher()
    assert all(matcher.consume(value) for value in done)
    assert matcher.forced_bytes() == forced


def test_case_42_a_byte_that_no_token_spells_leaves_an_empty_mask():
    compiler = compiler_of([], single_bytes=b"ab")
    matcher = compiler.pushdown(jf.choice(["az", "ay"])).matcher()
    assert matcher.consume(0)
    assert legal(matcher, compiler.vocabulary.width) == set()
    assert not matcher.is_accepting
    assert matcher.live_bytes() == b"yz"


def test_cases_8_and_9_the_end_token_and_nothing_behind_it():
    compiler = compiler_of(["ab"])
    width, (end,) = compiler.vocabulary.width, compiler.vocabulary.end_ids
    matcher = compiler.compile(jf.regex("ab(霍)?")).matcher()
    assert not matcher.consume(end)
    assert matcher.consume(256)
    assert matcher.is_accepting
    at_the_end = observe(matcher, width)
    assert matcher.consume(end)
    assert observe(matcher, width) == (set(), b"", True, True)
    assert matcher.live_bytes() == b""
    assert not any(matcher.consume(token) for token in range(width))
    assert matcher.fork().is_terminated
    matcher.rollback(1)
    assert observe(matcher, width) == at_the_end
    assert matcher.live_bytes() == "霍".encode()[:1]


@pytest.mark.parametrize("options", [["ab霍", "ab霏"], ["abc", "abd"]])
def test_case_39_a_refused_token_of_several_bytes_and_a_rollback_across_the_end(options):
    compiler = compiler_of(["ab", "霍x", "霍霍", "cx", "cc"])
    width, (end,) = compiler.vocabulary.width, compiler.vocabulary.end_ids
    ab, *wrong = range(256, 261)
    matcher = compiler.compile(jf.choice(options)).matcher()
    start = observe(matcher, width)
    assert matcher.consume(ab)
    before = observe(matcher, width)
    assert not any(matcher.consume(token) for token in wrong)  # the first bytes are legal, the next are not
    assert observe(matcher, width) == before
    for value in options[0].encode()[2:]:
        assert matcher.consume(value)
    assert matcher.consume(end)
    matcher.rollback(1 + len(options[0].encode()[2:]))
    assert observe(matcher, width) == before
    matcher.rollback(1)
    assert observe(matcher, width) == start


@pytest.mark.parametrize("num_tokens", [-1, 3])
def test_rollback_of_more_than_there_is_changes_nothing(num_tokens):
    compiler = compiler_of([])
    matcher = compiler.compile(jf.choice(["abc"])).matcher()
    assert matcher.consume(ord("a"))
    assert matcher.consume(ord("b"))
    with pytest.raises(ValueError, match="cannot undo"):
        matcher.rollback(num_tokens)
    matcher.rollback(0)
    assert matcher.forced_bytes() == b"c"


def test_case_34_every_end_id_is_legal_where_the_output_may_end():
    compiler = compiler_of(["ab"], more_ends=[256, 10])
    matcher = compiler.compile(jf.regex("a?")).matcher()
    assert legal(matcher, compiler.vocabulary.width) == {ord("a"), 10, 256, 257}


def test_a_grammar_is_compiled_once_and_shared(monkeypatch):
    compiler = compiler_of(["ab"])
    calls = []
    inner = compiler._compiler.compile_grammar
    monkeypatch.setattr(
        compiler,
        "_compiler",
        type("Counting", (), {"compile_grammar": lambda _, rules: calls.append(1) or inner(rules)})(),
    )
    grammar = jf.choice(["ab"])
    first, second = compiler.pushdown(grammar), compiler.pushdown(grammar)
    assert compiler.compile(grammar).index is compiler.compile(grammar).index
    assert first.tokens is second.tokens
    assert len(calls) == 1
    assert compiler.pushdown(jf.choice(["ab"])).tokens is first.tokens
    assert len(calls) == 1
    compiler.pushdown(jf.choice(["abc"]))
    assert len(calls) == 2


# A character that is printed as an escape, in front of a letter that could be one more digit of it.
texts_with_digits = st.text("\x01\x80éß霍😀ae0f9g\\", min_size=1, max_size=6)


@given(texts_with_digits)
@example("idée")
@example("größe")
@example("\x01e")
def test_texts_that_look_like_longer_escapes_are_matched_as_they_are(text):
    compiler = compiler_of([])
    for grammar in (jf.choice([text]), jf.json_schema({"const": text})):
        data = (text if grammar.kind == "choice" else json.dumps(text, ensure_ascii=False)).encode()
        matcher = compiler.pushdown(grammar).matcher()
        assert matcher.forced_bytes() == data
        assert matcher.live_bytes(data) == b""
        assert all(map(matcher.consume, data))
        assert matcher.is_accepting


def test_the_compiler_lets_grammars_go():
    compiler = compiler_of(["ab"])
    grammar = jf.choice(["ab"])
    compiled = compiler.compile(grammar)
    gone = weakref.ref(grammar)
    matcher = compiled.matcher()
    del grammar, compiled
    gc.collect()
    assert gone() is not None  # a matcher keeps what it walks on
    del matcher
    gc.collect()
    assert gone() is None
    assert len(compiler._tokens._made) == 0


@given(grammars, pieces, st.data())
def test_case_38_interleaved_matchers_are_as_one_after_the_other(grammar, drawn, data):
    compiler = compiler_of(drawn)
    width = compiler.vocabulary.width
    compiled = compiler.compile(grammar)
    paths = []
    for _ in range(2):
        matcher = compiled.matcher()
        ids = [*walk(matcher, width, data, 5)][-1]
        paths.append(ids)
    alone = [alone_along(compiled, ids, width) for ids in paths]
    matchers = [compiled.matcher(), compiled.matcher()]
    seen = [[observe(matcher, width)] for matcher in matchers]
    for index in range(max(map(len, paths))):
        for matcher, ids, places in zip(matchers, paths, seen, strict=True):
            if index < len(ids):
                assert matcher.consume(ids[index])
                places.append(observe(matcher, width))
    assert seen == alone


def alone_along(compiled, ids, width):
    matcher = compiled.matcher()
    places = [observe(matcher, width)]
    for token in ids:
        assert matcher.consume(token)
        places.append(observe(matcher, width))
    return places


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads")
def test_threads_that_compile_step_back_behind_those_that_generate() -> None:
    seen: list[int] = []

    class Noting:
        def known(self, _: jf.Grammar) -> None:
            return None

        def compile(self, _: jf.Grammar) -> None:
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    pool = CompilerPool(Noting(), 1)
    pool.start(jf.regex("a")).result()
    pool.close()
    assert seen == [19]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
