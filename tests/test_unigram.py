"""What is known of a unigram model's best way is what no rounding can change."""

from __future__ import annotations

from math import inf

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import models

from jumpforward.vocab.unigram import UnigramPaths

# Few scores, none of which a binary number has exactly: many ways are equally good but for rounding.
scores = st.sampled_from([-0.1, -0.7, -1.1, -2.3, -3.7])
vocabularies = st.dictionaries(st.text("ab", min_size=1, max_size=3), scores, min_size=1, max_size=8)
texts = st.text("abc", min_size=1, max_size=7)


def ways(text, scored):
    """Give every way through a text as its score and where its tokens end."""
    if not text:
        yield 0.0, ()
    for end in range(1, len(text) + 1):
        score = scored.get(text[:end], min(scored.values()) - 10 if end == 1 else -inf)
        if score > -inf:
            for rest, ends in ways(text[end:], scored):
                yield score + rest, (end, *(end + each for each in ends))


def best_ways(text, scored):
    every = list(ways(text, scored))
    best = max(score for score, _ in every)
    return [ends for score, ends in every if score > best - 1e-6]


@settings(max_examples=200)
@given(scored=vocabularies, text=texts)
def test_what_is_known_is_what_all_best_ways_share(scored, text):
    known = UnigramPaths(list(scored.items())).len_known(text)
    assert known in {0, *set.intersection(*map(set, best_ways(text, scored)))}
    is_one = [len(best_ways(text[:length], scored)) == 1 for length in range(1, len(text) + 1)]
    assert known == len(text) or not all(is_one)
    assert known < len(text) or is_one[-1]


@settings(max_examples=300)
@given(scored=vocabularies, text=st.text("ab", max_size=7) | st.integers(3, 9).map("a".__mul__), before=st.text("ab"))
@example(scored={"a": -2.7, "aaa": -1.1}, text="aaaa", before="bb")  # a aaa alone, and aaa a behind bbx
def test_what_is_known_stays_behind_other_text(scored, text, before):
    listed = [("<unk>", -9.0), *({"a": -2.3, "b": -3.7, "x": -1.3} | scored).items()]
    model = models.Unigram(listed, unk_id=0)
    known = UnigramPaths(listed).len_known(text)
    alone = [token.offsets for token in model.tokenize(text) if token.offsets[1] <= known]
    behind = f"{before}x"  # the only token with an x in it: tokens fall apart behind it
    both = [tuple(place - len(behind) for place in token.offsets) for token in model.tokenize(behind + text)]
    assert alone == [offsets for offsets in both if offsets[0] >= 0 and offsets[1] <= known]
