"""A pattern's cuts are the engine's own, and the ways in which a beginning can still be cut hold all that can come."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_tokenizers import FROM_THE_RIGHT, GPT2
from strategies import SPLITS
from tokenizers import Regex, pre_tokenizers

from jumpforward.vocab.pattern_parser import UnknownRuleError
from jumpforward.vocab.split_rule import ANYTHING, END, Ahead, SplitRule, TooManyWaysError

REAL = [GPT2, *FROM_THE_RIGHT, *dict.fromkeys(pattern for patterns in SPLITS.values() for pattern in patterns)]
TEXTS = st.text("ab'sreLl  \n\t12.,\"{é霍ſ\u00a0", max_size=12) | st.text("1234567a,٣_", max_size=12)

atoms = st.sampled_from(["a", "b", "[ab]", "[^a]", r"\s", r"\p{L}", ".", "(?i:a)", "(?:ab|b)", "(?i:ab)"])
repeats = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "{2,}"])
parts = st.builds(lambda atom, repeat: atom + repeat, atoms, repeats)
looks = st.sampled_from(
    ["", "", "", "", "(?!a)", "(?=b)", r"(?!\S)", r"\b", "(?=ab)", "(?!ab|b)", "(?=a*b)", r"(?=(bb)*\b)",
     "(?!(a|bb)+(?!a))"]
)  # fmt: skip
sequences = st.builds(lambda items, look: "".join(items) + look, st.lists(parts, min_size=1, max_size=3), looks)
sequences |= looks.filter(lambda look: look not in ("", r"\b"))  # cuts where nothing is matched
patterns = st.builds("|".join, st.lists(sequences, min_size=1, max_size=4))


def rule_of(pattern):
    try:
        return SplitRule(pattern)
    except UnknownRuleError:
        return None


def engine_cuts(pattern, text):
    pieces = pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)
    return (*(start for _, (start, _) in pieces), len(text)) if text else (0,)


def check(pattern, text, known):
    """Hold a rule to what the engine does with a text, and with the text behind a beginning of it."""
    if (rule := rule_of(pattern)) is None:
        return
    cuts = engine_cuts(pattern, text)
    assert rule.cuts(text, END) == [cuts]
    known = known % (len(text) + 1)
    within = tuple(place for place in cuts if place <= known)
    ahead = Ahead(text[known]) if known < len(text) else END
    for behind in (ANYTHING, ahead):
        ways, place = ways_of(rule, text[:known], behind)
        if place is None:
            assert within in ways
        else:
            check(pattern, text, place)


def ways_of(rule, text, ahead):
    """Return how a text can be cut, or, where that is too many ways, up to where there is one."""
    try:
        return rule.cuts(text, ahead), None
    except TooManyWaysError as error:
        return [], error.place


@settings(max_examples=400)
@given(pattern=patterns, text=st.text("abA c", max_size=8), known=st.integers(0, 8))
@example(pattern="ab|abc(?=d)", text="abcd", known=3)
def test_cuts_of_drawn_patterns(pattern, text, known):
    check(pattern, text, known)


@settings(max_examples=200)
@given(text=TEXTS, known=st.integers(0, 12))
@pytest.mark.parametrize("pattern", REAL)
def test_cuts_of_the_patterns_that_tokenizers_have(pattern, text, known):
    assert rule_of(pattern) is not None
    check(pattern, text, known)


halves = st.text("ab' 1", max_size=5)


@settings(max_examples=400)
@given(pattern=patterns | st.sampled_from(REAL), left=halves, right=halves, other=halves)
def test_what_is_not_joined_is_cut_without_regard_to_its_other_side(pattern, left, right, other):
    rule = rule_of(pattern)
    if rule is None or not left or not right:
        return
    cuts = engine_cuts(pattern, left + right)
    if not rule.joins(left[-1], right[0]):
        before = [place for place in cuts if place < len(left)]
        assert before == [place for place in engine_cuts(pattern, left + right[0] + other) if place < len(left)]
        alone = engine_cuts(pattern, right)
        assert [len(left) + place for place in alone[1:]] == [place for place in cuts if place > len(left)]
        if rule.cuts_between(left[-1], right[0]):
            assert len(left) in cuts


@pytest.mark.parametrize(
    ("text", "ahead", "ways"),
    [
        pytest.param("ab  ", ANYTHING, {(0, 2), (0, 2, 4), (0, 2, 3), (0, 2, 3, 4)}, id="nothing is known"),
        pytest.param("ab  ", Ahead("c"), {(0, 2, 3)}, id="a letter is coming"),
        pytest.param("ab  ", END, {(0, 2, 4)}, id="nothing is coming"),
        pytest.param("ab'", Ahead("s"), {(0, 2)}, id="a contraction"),
        pytest.param("ab", Ahead("1"), {(0, 2)}, id="a digit ends a word"),
    ],
)
def test_ways_to_cut_by_what_is_coming(text, ahead, ways):
    assert set(SplitRule(GPT2).cuts(text, ahead)) == ways


@pytest.mark.parametrize(
    "pattern",
    ["a++", "a*?", "a+?", "(?<=a)b", r"\bfoo", "^a", "a$", r"(a)\1", "(?>a)", "(?i)a", r"(?=\b)a", "a(?=b(?=cd))",
     r"a\B", "(", "a)", "[a", "(?i:ss)", "(?i:fi)", "a{3,2}", "a{,}", "a{9999}", r"\G", "(?<n>a)"],
)  # fmt: skip
def test_patterns_that_are_not_understood(pattern):
    with pytest.raises(UnknownRuleError):
        SplitRule(pattern)


@pytest.mark.parametrize("pattern", FROM_THE_RIGHT)
def test_groups_of_digits_from_the_right_are_known_when_the_number_ends(pattern):
    rule = SplitRule(pattern)
    assert rule.cuts("1234567", END) == [(0, 1, 4, 7)]
    assert all(way[:3] == (0, 1, 4) for way in rule.cuts("1234567", Ahead(",")))
    for behind in (ANYTHING, Ahead("8")):
        ways, place = ways_of(rule, "n 1234", behind)
        assert max(set.intersection(*map(set, ways)) if ways else {place}) <= 2


def test_ways_without_number_are_not_looked_at():
    rule = SplitRule("a[ab]*c|a|b")
    assert len(rule.cuts("ab" * 20, ANYTHING)) == 21
    with pytest.raises(TooManyWaysError, match="ways to cut"):
        rule.cuts("ab" * 100, ANYTHING)
    assert ways_of(rule, "bbb" + "ab" * 100, ANYTHING) == ([], 3)  # up to there it is known
