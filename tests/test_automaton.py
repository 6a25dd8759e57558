"""The token index and its matcher, against brute force over the vocabulary and against xgrammar."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xgrammar
from automata import ATOMS, CLASSES, bits, patterns, vocabulary_of
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import languages

import jumpforward as jf
from jumpforward.grammar.dfa import Dfa
from jumpforward.grammar.pattern import xgrammar_difference
from jumpforward.matching.automaton import AutomatonMatcher, CompiledAutomaton, automaton_for, dfa_for
from jumpforward.matching.pushdown import CompiledGrammar, PushdownMatcher
from jumpforward.matching.token_index import IndexTooLargeError, TokenIndex
from jumpforward.vocab.vocabulary import Vocabulary

BYTES = tuple(bytes([value]) for value in range(256))
SPELLINGS = ["a", "b", "1", "-", "é", "霍", "霏", "😀", "\n", "A", ".", " ", "0"]
whole_pieces = st.lists(st.sampled_from(SPELLINGS), min_size=1, max_size=4).map("".join).map(str.encode)
pieces = st.lists(whole_pieces | whole_pieces.map(lambda piece: piece[1:]), max_size=12, unique=True).map(tuple)
vocabularies = pieces.map(lambda drawn: vocabulary_of(BYTES + tuple(filter(None, drawn))))
poor_vocabularies = pieces.map(lambda drawn: vocabulary_of(tuple(filter(None, drawn))))


def behind(dfa: Dfa, vocabulary: Vocabulary) -> list[dict[int, int]]:
    """Return for every state the next state by token, from the bytes alone."""
    rows = [
        {index: dfa.run(token, state) for index, token in enumerate(vocabulary.token_bytes) if token}
        for state in range(dfa.num_states)
    ]
    return [{index: target for index, target in row.items() if target != dfa.dead} for row in rows]


def distances(dfa: Dfa, rows: list[dict[int, int]]) -> list[float]:
    """Return the fewest tokens to an accepting state, by relaxation."""
    far = [0.0 if accepting else np.inf for accepting in dfa.accepting[:-1]]
    for _ in range(dfa.num_states):
        far = [min([far[state], *(far[target] + 1 for target in row.values())]) for state, row in enumerate(rows)]
    return far


def mask_of(matcher: AutomatonMatcher | object, width: int) -> np.ndarray:
    bitmask = xgrammar.allocate_token_bitmask(2, width)
    before = bitmask[0].clone()
    matcher.fill_bitmask(bitmask, 1)
    assert torch.equal(bitmask[0], before)
    return bits(bitmask[1].numpy(), width)


def walk(data: st.DataObject, matcher: AutomatonMatcher, num_steps: int) -> list[int]:
    """Consume legal tokens, drawn, at most so many; return them."""
    consumed = []
    while len(consumed) < num_steps and not matcher.is_terminated:
        legal = matcher._index.allowed(matcher._place.state).tolist()
        if not legal:
            break
        consumed.append(data.draw(st.sampled_from(legal)))
        assert matcher.consume(consumed[-1])
    return consumed


def pushdown_matcher(grammar: jf.Grammar, vocabulary: Vocabulary) -> PushdownMatcher:
    info = xgrammar.TokenizerInfo(
        list(vocabulary.token_bytes),
        xgrammar.VocabType.RAW,
        vocab_size=vocabulary.width,
        stop_token_ids=list(vocabulary.end_ids),
    )
    tokens = xgrammar.GrammarCompiler(info).compile_grammar(grammar.rules)
    return CompiledGrammar(grammar, vocabulary, tokens).matcher()


# -- law 3: the index --


@given(patterns(ATOMS + CLASSES), vocabularies | poor_vocabularies)
def test_the_index_is_brute_force_over_the_vocabulary(pattern, vocabulary):
    dfa = Dfa.from_regex(pattern)
    assume(dfa.num_states <= 40)
    index = TokenIndex.build(dfa, vocabulary)
    rows = behind(dfa, vocabulary)
    far = distances(dfa, rows)
    for state, row in enumerate(rows):
        alive = {token: target for token, target in row.items() if far[target] < np.inf}
        ends = dict.fromkeys(vocabulary.end_ids, index.ended) if dfa.accepting[state] else {}
        assert index.allowed(state).tolist() == sorted(alive | ends)
        assert {
            token: int(index.next_state[index.effect_of[token], state]) for token in index.allowed(state)
        } == alive | ends
        assert bits(index.masks[state], vocabulary.width).nonzero()[0].tolist() == sorted(alive | ends)
        assert index.fewest(state) == (None if far[state] == np.inf else far[state])
        assert (index.fewest(state) is None) == (not index.allowed(state).size)  # no empty row looks alive
    assert not index.masks[index.dead].any()
    assert not index.masks[index.ended].any()


@given(patterns((*ATOMS, r"\d", r"\w", ".")), vocabularies, st.data())
def test_masks_are_xgrammars_masks(pattern, vocabulary, data):
    assume(xgrammar_difference(pattern) is None)
    grammar = jf.regex(pattern)
    compiled = automaton_for(grammar, vocabulary)
    assert isinstance(compiled, CompiledAutomaton)
    ours, theirs = compiled.matcher(), pushdown_matcher(grammar, vocabulary)
    for _ in range(6):
        expected = mask_of(theirs, vocabulary.width)
        assert mask_of(ours, vocabulary.width).tolist() == expected.tolist()
        assert (ours.is_accepting, ours.is_terminated) == (theirs.is_accepting, theirs.is_terminated)
        assert ours.forced_bytes() == theirs.forced_bytes()
        assert ours.live_bytes() == theirs.live_bytes()
        if not expected.any():
            break
        # xgrammar lets surrogates in behind ED, which no UTF-8 has.
        legal = [token for token in expected.nonzero()[0].tolist() if vocabulary.token_bytes[token] != b"\xed"]
        token = data.draw(st.sampled_from(legal))
        assert ours.consume(token)
        assert theirs.consume(token)


def test_bits_beyond_the_vocabulary_stay_clear():
    vocabulary = vocabulary_of((b"a", b"b"), num_padding=0)
    index = TokenIndex.build(Dfa.from_regex("[ab]*"), vocabulary)
    assert vocabulary.width == 4
    assert index.masks.dtype == np.int32
    assert index.masks[0].tolist() == [0b0111]
    assert index.masks[:, 0].tolist() == [0b0111, 0, 0]


# -- laws 4 and 5: the matcher --


@given(languages, vocabularies, st.data())
def test_a_bit_is_set_where_the_matcher_accepts(strings, vocabulary, data):
    matcher = automaton_for(jf.choice(strings), vocabulary).matcher()
    walk(data, matcher, 3)
    mask = mask_of(matcher, vocabulary.width)
    for token in range(-vocabulary.width, vocabulary.width + 2):
        accepted = matcher.fork().consume(token)
        assert accepted == (0 <= token < vocabulary.width and mask[token])
    special = sorted(vocabulary.special_ids - set(vocabulary.end_ids))
    assert not mask[special].any()
    assert not mask[vocabulary.num_tokens :].any()
    assert mask[list(vocabulary.end_ids)].all() == (matcher.is_accepting and not matcher.is_terminated)


def seen(matcher: AutomatonMatcher) -> tuple[object, ...]:
    width = len(matcher._index.effect_of)
    return (
        mask_of(matcher, width).tolist(),
        matcher.forced_bytes(),
        matcher.live_bytes(),
        matcher.is_accepting,
        matcher.is_terminated,
        matcher.fewest_tokens,
    )


@given(languages, vocabularies, st.data())
def test_rollback_undoes_and_a_refusal_or_a_query_changes_nothing(strings, vocabulary, data):
    matcher = automaton_for(jf.choice(strings), vocabulary).matcher()
    history = [seen(matcher)]
    consumed = walk(data, matcher, 8)
    other = automaton_for(jf.choice(strings), vocabulary).matcher()
    for token in consumed:
        assert other.consume(token)
        history.append(seen(other))
    assert seen(matcher) == history[-1] == seen(matcher)
    back = data.draw(st.integers(0, len(consumed)))
    fork = matcher.fork()
    matcher.rollback(back)
    assert seen(matcher) == history[len(consumed) - back]
    assert seen(fork) == history[-1]
    with pytest.raises(ValueError, match="cannot undo"):
        matcher.rollback(len(consumed) - back + 1)
    with pytest.raises(ValueError, match="cannot undo"):
        matcher.rollback(-1)
    assert seen(matcher) == history[len(consumed) - back]


def test_a_long_history_is_forked_and_dropped_without_deep_recursion():
    matcher = automaton_for(jf.regex("a*"), vocabulary_of((b"a",))).matcher()
    for _ in range(200_000):
        matcher.consume(1)
    fork = matcher.fork()
    fork.rollback(199_999)
    assert fork.fewest_tokens == 0
    del matcher, fork


def test_nothing_is_legal_behind_an_end_token_and_rollback_crosses_it():
    matcher = automaton_for(jf.choice(["ab"]), vocabulary_of((b"a", b"b"))).matcher()
    assert not matcher.consume(0)
    assert [matcher.consume(token) for token in (1, 2, 0)] == [True] * 3
    assert matcher.is_terminated
    assert matcher.is_accepting
    assert not matcher.consume(0)
    assert (matcher.forced_bytes(), matcher.live_bytes()) == (b"", b"")
    matcher.rollback(2)
    assert not matcher.is_terminated
    assert matcher.forced_bytes() == b"b"


# -- completing within a budget --


@given(patterns(ATOMS + CLASSES), vocabularies | poor_vocabularies, st.integers(0, 4), st.data())
def test_an_output_of_completing_tokens_is_complete(pattern, vocabulary, extra, data):
    dfa = Dfa.from_regex(pattern)
    assume(dfa.num_states <= 200)
    index = TokenIndex.build(dfa, vocabulary)
    fewest = index.fewest(dfa.start)
    assume(fewest is not None)
    compiled = CompiledAutomaton(jf.regex("a"), vocabulary, dfa, index)
    matcher, bitmask = compiled.matcher(), xgrammar.allocate_token_bitmask(1, vocabulary.width)
    for left in range(fewest + extra, 0, -1):
        matcher.fill_completing_bitmask(bitmask, 0, left)
        legal = bits(bitmask[0].numpy(), vocabulary.width).nonzero()[0].tolist()
        assert legal
        matcher.consume(data.draw(st.sampled_from(legal)))
        if matcher.is_terminated:
            break
    assert matcher.is_accepting


@given(patterns(ATOMS), vocabularies, st.integers(0, 6))
def test_a_completing_token_is_one_behind_which_the_rest_fits(pattern, vocabulary, num_tokens):
    dfa = Dfa.from_regex(pattern)
    assume(dfa.num_states <= 40)
    index = TokenIndex.build(dfa, vocabulary)
    far = distances(dfa, rows := behind(dfa, vocabulary))
    for state, row in enumerate(rows):
        fits = {token for token, target in row.items() if far[target] + 1 <= num_tokens}
        ends = set(vocabulary.end_ids) if dfa.accepting[state] and num_tokens else set()
        legal = bits(index.completing_mask(state, num_tokens), vocabulary.width).nonzero()[0]
        assert legal.tolist() == sorted(fits | ends)


# -- what cannot be --


def test_a_byte_that_no_token_spells_ends_only_its_branch():
    vocabulary = vocabulary_of((b"a", b"b", b"xy"))
    compiled = automaton_for(jf.choice(["ax", "ab", "axya", "z"]), vocabulary)
    assert compiled.index.allowed(0).tolist() == [1]
    assert compiled.fewest_tokens == 2
    assert compiled.index.allowed(1).tolist() == [2, 3]  # the x alone cannot be spelled, xy can
    nothing = automaton_for(jf.choice(["z"]), vocabulary)
    assert nothing.fewest_tokens is None
    assert not nothing.index.masks[nothing.dfa.start].any()
    assert nothing.matcher().live_bytes() == b"z"
    assert not nothing.matcher().is_accepting


def test_an_index_beyond_its_limit_is_refused():
    dfa, vocabulary = Dfa.from_regex("(a|b|ab){9}"), vocabulary_of(BYTES)
    with pytest.raises(IndexTooLargeError, match="max_entries=100"):
        TokenIndex.build(dfa, vocabulary, max_entries=100)
    words = [f"{number * 7919 % 100_000:05}" for number in range(40)]  # nearly every part of them has its own effect
    parts = {word[start:end].encode() for word in words for start in range(5) for end in range(start + 1, 6)}
    dfa, vocabulary = Dfa.from_strings(words), vocabulary_of(tuple(sorted(parts)))
    just_the_states = (dfa.num_states + 2) ** 2
    with pytest.raises(IndexTooLargeError, match=f"max_entries={just_the_states}"):
        TokenIndex.build(dfa, vocabulary, max_entries=just_the_states)
    assert TokenIndex.build(dfa, vocabulary).num_bytes > 4 * just_the_states


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (jf.json_schema({"type": "string"}), "kind json_schema need not be regular"),
        (jf.regex("a^b"), "at position 1 would be read in another way"),
        (jf.regex("(.a|b.){9,400}c{400}[ab]{40}x(a|b)*a(a|b){20}"), "max_states=10000"),
        (jf.regex(r"\cA"), "bad escape"),
        (jf.choice([f"{number:05}{'x' * 90}{number:05}" for number in range(200)]), "max_states=10000"),
    ],
)
def test_what_has_no_automaton_says_why(grammar, reason):
    assert reason in dfa_for(grammar)
    assert reason in automaton_for(grammar, vocabulary_of((b"a",)))
