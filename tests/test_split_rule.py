"""A pattern's cuts are the engine's own, and the ways in which a beginning can still be cut hold all that can come."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import SPLITS
from tokenizers import Regex, pre_tokenizers

from jumpforward.vocab.pattern_parser import UnknownRuleError
from jumpforward.vocab.split_rule import ANYTHING, END, Ahead, SplitRule

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
REAL = [GPT2, *dict.fromkeys(pattern for patterns in SPLITS.values() for pattern in patterns)]
TEXTS = st.text("ab'sreLl  \n\t12.,\"{é霍ſ\u00a0", max_size=12)

atoms = st.sampled_from(["a", "b", "[ab]", "[^a]", r"\s", r"\p{L}", ".", "(?i:a)", "(?:ab|b)", "(?i:ab)"])
repeats = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "{2,}"])
parts = st.builds(lambda atom, repeat: atom + repeat, atoms, repeats)
looks = st.sampled_from(["", "", "", "(?!a)", "(?=b)", r"(?!\S)"])
sequences = st.builds(lambda items, look: "".join(items) + look, st.lists(parts, min_size=1, max_size=3), looks)
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
        assert within in rule.cuts(text[:known], behind)


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


@settings(max_examples=300)
@given(pattern=patterns | st.sampled_from(REAL), left=st.text("ab' 1", max_size=5), right=st.text("ab' 1", max_size=5))
def test_what_is_not_joined_is_cut_without_regard_to_its_left(pattern, left, right):
    rule = rule_of(pattern)
    if rule is None or not left or not right:
        return
    cuts = engine_cuts(pattern, left + right)
    if not rule.joins(left[-1], right[0]):
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
    ["a++", "a*?", "a+?", "(?<=a)b", r"\bfoo", "^a", "a$", r"(a)\1", "(?>a)", "(?i)a", "a*", "(?!a)", "(", "a)", "[a",
     "(?i:ss)", "(?i:fi)", "a{3,2}", "a{,}", "a{9999}", r"\G", "(?<n>a)"],
)  # fmt: skip
def test_patterns_that_are_not_understood(pattern):
    with pytest.raises(UnknownRuleError):
        SplitRule(pattern)


def test_ways_without_number_are_refused():
    rule = SplitRule("a[ab]*c|a|b")
    assert len(rule.cuts("ab" * 20, ANYTHING)) == 21
    with pytest.raises(UnknownRuleError, match="ways to cut"):
        rule.cuts("ab" * 100, ANYTHING)
