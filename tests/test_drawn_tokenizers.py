"""Law 6 on tokenizers that nobody would make, with every continuation that a drawn language has."""

from __future__ import annotations

import random

import pytest
from drawn_tokenizers import drawn, text
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import jumpforward as jf
from jumpforward.decoding.boundary import Boundary
from jumpforward.vocab.agreeing import common_beginning
from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.encoder import PlainEncoder
from jumpforward.vocab.vocabulary import Vocabulary

NUM_LANGUAGES = 25


class Jumps:
    """Places in drawn languages at which bytes are forced, for one drawn tokenizer."""

    def __init__(self, seed):
        tokenizer, letters = drawn(seed)
        self.draw, self.letters = random.Random(seed), letters
        self.text_bytes = (vocabulary := Vocabulary.from_tokenizer(tokenizer)).text_bytes
        self.token_bytes = vocabulary.token_bytes
        try:
            self.encode = (encoder := PlainEncoder(tokenizer, vocabulary)).encode
        except jf.TokenizerError:  # with an added token that is the beginning of a plain text
            assume(False)
        self.boundary = Boundary(encoder, StableBorders(tokenizer, vocabulary))
        assert self.boundary.not_understood is None

    def __iter__(self):
        """Give an output, how many of its tokens are canonical, what is forced behind it, and how texts go on there."""
        for _ in range(NUM_LANGUAGES):
            begun = text(self.draw, self.letters, 9)
            language = [(begun + text(self.draw, self.letters, 4)).encode() for _ in range(self.draw.randint(1, 5))]
            canonical = self.encode(language[0])
            if canonical is None:
                continue
            output = canonical[: self.draw.randint(0, len(canonical))]
            num_canonical = len(output)
            if self.draw.random() < 0.4:
                output, num_canonical = self.respelled(self.text_bytes(output)), 0
            left = self.text_bytes(output)
            rests = [text[len(left) :] for text in language if text.startswith(left)]
            if forced := bytes(common_beginning(rests)):
                yield output, num_canonical, forced, rests

    def respelled(self, data):
        """Spell a text in any tokens that fit."""
        ids = ()
        while rest := data[len(self.text_bytes(ids)) :]:
            fitting = [index for index, token in enumerate(self.token_bytes) if token and rest.startswith(token)]
            ids += (self.draw.choice(fitting),)
        return ids

    def goes_on(self, output, start, stable, rests):
        """Whether the tokens of all texts behind the first ``start`` ones are the others and the stable ones."""
        expected = (*output[start:], *stable)
        found = (self.encode(self.text_bytes(output[start:]) + rest) for rest in rests)
        return all(ids is None or ids[: len(expected)] == expected for ids in found)


def live_bytes(rests):
    return lambda behind: bytes({rest[len(behind)] for rest in rests if rest.startswith(behind) and rest != behind})


@settings(max_examples=120)
@given(seed=st.integers(0, 1 << 30))
@pytest.mark.parametrize("knows_grammar", [True, False])
def test_law_6_no_legal_continuation_changes_what_is_stable(seed, knows_grammar):
    jumps = Jumps(seed)
    for output, num_canonical, forced, rests in jumps:
        stable = jumps.boundary.spell(output, forced, live_bytes(rests) if knows_grammar else None).stable
        assert forced.startswith(jumps.text_bytes(stable))
        if num_canonical:
            for rest in rests:
                ids = jumps.encode(jumps.text_bytes(output) + rest)
                if ids is not None and ids[: len(output)] == output:
                    assert ids[len(output) : len(output) + len(stable)] == stable
        assert any(jumps.goes_on(output, start, stable, rests) for start in range(len(output) + 1))


@settings(max_examples=120)
@given(seed=st.integers(0, 1 << 30))
def test_a_rewrite_gives_the_canonical_tokens_and_says_which_are_final(seed):
    jumps = Jumps(seed)
    for output, num_canonical, forced, rests in jumps:
        rewrite = jumps.boundary.rewrite(output, num_canonical, forced)
        if rewrite is None:
            continue
        ids = (*output[: rewrite.num_kept], *rewrite.ids)
        assert ids == jumps.encode(jumps.text_bytes(ids))
        for rest in rests:
            longer = jumps.encode(jumps.text_bytes(output) + rest)
            assert longer is None or longer[: rewrite.num_final] == ids[: rewrite.num_final]
