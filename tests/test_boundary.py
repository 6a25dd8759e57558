"""Law 6 with a grammar: what is written without asking stays, whatever the grammar lets follow."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from made_tokenizers import FROM_THE_RIGHT, KINDS, from_the_right, split_by, unigram_with_ties
from strategies import SPLITS, byte_level, with_words
from tokenizers import AddedToken

import jumpforward as jf
from jumpforward.decoding.boundary import Boundary
from jumpforward.matching.compiler import GrammarCompiler
from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.encoder import PlainEncoder
from jumpforward.vocab.vocabulary import Vocabulary

PARTS = [
    "abcdef", "g", "x", "ghijklm", "n", '"', '":', ": ", ' "', "order", "Id", "Name", "12", "3", "45", "11", ",", "  ",
    "\n", "the", "'s", "fo", "o", "e\u0301", "é", "霍",
]  # fmt: skip
languages = st.lists(st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("".join), min_size=1, max_size=5)
cases = st.tuples(st.sampled_from(sorted(KINDS)), languages, st.integers(0, 4), st.integers(0, 4), st.booleans())


class Setting:
    """A tokenizer and all that is made of it."""

    def __init__(self, tokenizer) -> None:
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer)
        self.encoder = PlainEncoder(tokenizer, self.vocabulary)
        self.boundary = Boundary(self.encoder, StableBorders(tokenizer, self.vocabulary))
        self.compiler = GrammarCompiler(self.vocabulary)

    def matcher(self, grammar, *, automaton):
        return (self.compiler.compile(grammar) if automaton else self.compiler.pushdown(grammar)).matcher()

    def ids(self, text):
        return self.encoder.encode(text.encode())


@cache
def setting(name):
    return Setting(KINDS[name]())


def jump(case):
    """Return setting, language, canonical tokens of one of its texts, what is forced behind them, and the matcher."""
    name, language, which, num_left, automaton = case
    chosen = setting(name)
    whole = chosen.ids(language[which % len(language)])
    if whole is None:
        return None
    left = whole[: min(num_left, len(whole))]
    matcher = chosen.matcher(jf.choice(language), automaton=automaton)
    if not all(map(matcher.consume, left)):
        return None
    forced = matcher.forced_bytes()
    return chosen, language, left, forced, matcher


def violation(chosen, language, left, forced, committed):
    """Return a text of the language whose tokens begin with ``left``, and then not with what was committed."""
    known = chosen.vocabulary.text_bytes(left) + forced
    for text in language:
        ids = chosen.ids(text)
        fits = ids is not None and text.encode().startswith(known) and ids[: len(left)] == left
        if fits and ids[len(left) : len(left) + len(committed)] != committed:
            return text
    return None


@settings(max_examples=600)
@given(case=cases, knows_grammar=st.booleans())
def test_law_6_no_legal_continuation_changes_what_is_stable(case, knows_grammar):
    if (found := jump(case)) is None:
        return
    chosen, language, left, forced, matcher = found
    spelling = chosen.boundary.spell(left, forced, matcher.live_bytes if knows_grammar else None)
    assert chosen.boundary.tokens(left, forced) == spelling.ids
    assert violation(chosen, language, left, forced, spelling.stable) is None
    text = chosen.vocabulary.text_bytes(spelling.ids)
    assert forced.startswith(text)
    assert matcher.forced_bytes() == forced  # law 5: asking what follows has moved nothing


@settings(max_examples=300)
@given(case=cases, data=st.data())
def test_law_6_behind_tokens_that_are_no_tokenizers(case, data):
    if (found := jump(case)) is None:
        return
    chosen, language, canonical, forced, matcher = found
    begun = chosen.vocabulary.text_bytes(canonical)
    left = spelled(chosen, begun, data)
    stable = chosen.boundary.spell(left, forced, matcher.live_bytes).stable
    texts = [text.encode() for text in language if text.encode().startswith(begun + forced)]
    assert any(all(goes_on(chosen, left, start, stable, text) for text in texts) for start in range(len(left) + 1))


def spelled(chosen, text, data):
    """Spell a text in tokens that are drawn from all that fit."""
    ids = ()
    while rest := text[len(chosen.vocabulary.text_bytes(ids)) :]:
        fitting = [
            index for index, piece in enumerate(chosen.vocabulary.token_bytes) if piece and rest.startswith(piece)
        ]
        ids += (data.draw(st.sampled_from(fitting)),)
    return ids


def goes_on(chosen, left, start, stable, text):
    """Whether a text's tokens behind the first ``start`` of the left ones are the others and the stable ones."""
    rest = chosen.encoder.encode(text[len(chosen.vocabulary.text_bytes(left[:start])) :])
    expected = (*left[start:], *stable)
    return rest is None or rest[: len(expected)] == expected


@pytest.mark.parametrize(
    ("num_dropped", "chain"),
    [pytest.param(1, "chain", id="drop one"), pytest.param(4, "long chain", id="look back four")],
)
def test_law_6_finds_the_published_weaker_rules_wrong(num_dropped, chain):
    def is_wrong(case):
        if (found := jump(case)) is None:
            return False
        chosen, language, left, forced, _ = found
        committed = chosen.boundary.spell(left, forced).ids[:-num_dropped]
        return violation(chosen, language, left, forced, committed) is not None

    parts = ["cdefghijklm", "n", "abcdef", "g", "x"]
    languages = st.tuples(st.sampled_from(parts), st.lists(st.sampled_from(parts), min_size=2, max_size=2, unique=True))
    spelled = languages.map(lambda drawn: [drawn[0] + end for end in drawn[1]])
    narrowed = st.tuples(st.just(chain), spelled, st.just(0), st.just(0), st.just(True))
    quick = settings(max_examples=300, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    find(narrowed, is_wrong, settings=quick)  # an error where there is none: this test would have no teeth


@pytest.mark.parametrize("pattern", FROM_THE_RIGHT)
@pytest.mark.parametrize("num_dropped", [1, 4])
def test_a_look_back_is_wrong_where_digits_are_grouped_from_the_right(pattern, num_dropped):
    chosen = Setting(from_the_right(pattern))
    language = ["n=" + "123" * 5, "n=" + "123" * 5 + "1"]
    matcher = chosen.matcher(jf.choice(language), automaton=True)
    spelling = chosen.boundary.spell((), matcher.forced_bytes(), matcher.live_bytes)
    assert b"123" in map(chosen.vocabulary.token_bytes.__getitem__, spelling.ids)
    assert violation(chosen, language, (), matcher.forced_bytes(), spelling.ids[:-num_dropped]) is not None
    assert chosen.vocabulary.text_bytes(spelling.stable) in (b"n=", b"n")


@pytest.mark.parametrize("automaton", [True, False])
@pytest.mark.parametrize(
    ("language", "left", "stable"),
    [
        pytest.param([': "12', ': "34'], "", ': "', id="digits do not merge with a quote"),
        pytest.param([': "12', ': ":x'], "", ":", id='the quote could be in `":`'),
        pytest.param(["abcdefx", "abcdefz"], "", "abcdef", id="13, and nothing that could merge may follow"),
        pytest.param(["abcdefx", "abcdefg"], "", "", id="13"),
        pytest.param(["ordered", "orderly"], "", "order", id="10, and no longer token may follow"),
        pytest.param(["orderId", "orderName"], "", "", id="10"),
        pytest.param(["a12", "a12z"], "", "a12", id="12 may end or go on with a letter"),
        pytest.param(["a12", "a123"], "", "a", id="123 is a token"),
        pytest.param(["orde", "ordeal"], "", "orde", id="order is a token, and does not follow"),
        pytest.param(["Ior", "IorX"], "", "Ior", id="ord is a token, and only X follows"),
    ],
)
def test_the_matcher_says_what_may_follow(language, left, stable, automaton):
    chosen = setting("chain")
    matcher = chosen.matcher(jf.choice(language), automaton=automaton)
    spelling = chosen.boundary.spell(chosen.ids(left), matcher.forced_bytes(), matcher.live_bytes)
    assert chosen.vocabulary.text_bytes(spelling.stable).decode() == stable


@given(language=languages, automaton=st.booleans(), num_left=st.integers(0, 3), num_behind=st.integers(0, 3))
def test_live_bytes_are_what_the_language_says(language, automaton, num_left, num_behind):
    chosen = setting("gpt2")
    matcher = chosen.matcher(jf.choice(language), automaton=automaton)
    left = chosen.ids(language[0])[:num_left]
    assert all(map(matcher.consume, left))
    known = matcher.forced_bytes()
    begun = chosen.vocabulary.text_bytes(left) + known
    rests = [text.encode()[len(begun) :] for text in language if text.encode().startswith(begun)]
    for behind in {rest[:num_behind] for rest in rests}:
        live = {rest[len(behind)] for rest in rests if len(rest) > len(behind) and rest.startswith(behind)}
        assert matcher.live_bytes(known + behind) == bytes(sorted(live))
    assert matcher.forced_bytes() == known


@settings(max_examples=600)
@given(case=cases)
def test_a_rewrite_gives_the_canonical_tokens_of_the_whole_text(case):
    if (found := jump(case)) is None:
        return
    chosen, language, left, forced, _ = found
    single = [token for byte in chosen.vocabulary.text_bytes(left) for token in byte_tokens(chosen, byte)]
    for output, num_canonical in ((left, len(left)), (left, 0), (single, 0)):
        rewrite = chosen.boundary.rewrite(output, num_canonical, forced)
        if rewrite is None:
            continue
        ids = (*output[: rewrite.num_kept], *rewrite.ids)
        text = chosen.vocabulary.text_bytes(ids)
        assert (chosen.vocabulary.text_bytes(left) + forced).startswith(text)
        assert ids == chosen.encoder.encode(text)
        assert rewrite.num_final <= rewrite.num_kept
        for text in language:
            longer = chosen.ids(text) if text.encode().startswith(chosen.vocabulary.text_bytes(left) + forced) else None
            assert longer is None or longer[: rewrite.num_final] == ids[: rewrite.num_final]


def byte_tokens(chosen, byte):
    """Return the token of a single byte."""
    return [chosen.vocabulary.token_bytes.index(bytes([byte]))]


def test_case_21_a_window_begins_neither_in_a_word_nor_in_a_character(monkeypatch):
    chosen = setting("gpt2")
    canonical, expected = chosen.ids("the 霍格"), chosen.ids("the 霍格沃茨")
    single = [token for byte in "the 霍格".encode() for token in byte_tokens(chosen, byte)]
    windows = []
    encode = chosen.encoder.encode
    monkeypatch.setattr(chosen.encoder, "encode", lambda data, left=(): windows.append(data) or encode(data, left))
    for output, num_canonical in ((single, 0), (canonical, len(canonical))):
        rewrite = chosen.boundary.rewrite(output, num_canonical, "沃茨".encode())
        assert (*output[: rewrite.num_kept], *rewrite.ids) == expected
    chosen.boundary.spell(canonical, "沃茨".encode())
    assert {window.decode() for window in windows} == {"the 霍格沃茨", " 霍格沃茨", "沃茨"}


@pytest.mark.parametrize(
    ("make", "left", "forced", "tokens"),
    [
        pytest.param(
            lambda: split_by(*SPLITS["llama3"], pieces=["  "]),
            "a  ",
            "1",
            ["a", " ", " ", "1"],
            id="spaces before a digit",
        ),
        pytest.param(unigram_with_ties, "x  " + "1" * 5, "11y", None, id="rounding decides"),
        pytest.param(lambda: from_the_right(FROM_THE_RIGHT[2]), "n 12", "3", None, id="another group of digits"),
    ],
)
def test_what_follows_can_change_tokens_in_front_of_a_place_where_they_fall_apart(make, left, forced, tokens):
    chosen = Setting(make())
    output = chosen.ids(left)
    rewrite = chosen.boundary.rewrite(output, len(output), forced.encode())
    ids = (*output[: rewrite.num_kept], *rewrite.ids)
    assert ids == chosen.ids(left + forced)
    spelled = [chosen.vocabulary.token_bytes[token].decode() for token in ids]
    assert tokens is None or spelled == tokens


def test_case_22_a_rewrite_can_be_shorter_than_what_it_replaces():
    chosen = setting("chain")
    left = [token for byte in b"order" for token in byte_tokens(chosen, byte)]
    rewrite = chosen.boundary.rewrite(left, 0, b"Id")
    assert [chosen.vocabulary.token_bytes[token] for token in rewrite.ids] == [b"orderId"]
    assert rewrite.num_kept == 0


def test_forced_text_that_begins_inside_a_character_is_spelled_behind_its_beginning():
    chosen = setting("chain")
    lead = byte_tokens(chosen, "霍".encode()[0])
    rest = "霍".encode()[1:] + b'"'
    spelling = chosen.boundary.spell([*byte_tokens(chosen, ord("a")), *lead], rest)
    assert chosen.vocabulary.text_bytes(spelling.ids) == rest


@pytest.mark.parametrize(
    ("left", "forced"),
    [
        pytest.param("a <to", "ol>", id="an added word is completed"),
        pytest.param("a-q", "q ", id="one that must stand alone does not"),
        pytest.param("a -q", "q ", id="one that must stand alone does"),
    ],
)
def test_added_words_are_seen_across_a_window(left, forced):
    chosen = Setting(with_words(byte_level(), AddedToken("<tool>"), AddedToken("-qq", single_word=True)))
    rewrite = chosen.boundary.rewrite(chosen.ids(left), len(chosen.ids(left)), forced.encode())
    assert (*chosen.ids(left)[: rewrite.num_kept], *rewrite.ids) == chosen.ids(left + forced)


def test_only_a_window_is_encoded(monkeypatch):
    chosen = setting("llama3")
    output = chosen.ids('{"name": "Ann", "tags": ["red", "blue"]}, ' * 20)
    lengths = []
    encode = chosen.encoder.encode
    monkeypatch.setattr(chosen.encoder, "encode", lambda data, left=(): lengths.append(len(data)) or encode(data, left))
    chosen.boundary.rewrite(output, len(output), b'"name": "')
    chosen.boundary.spell(output, b'"order_id": ')
    chosen.boundary.num_open(output, b'"')
    assert 0 < max(lengths) < 40
