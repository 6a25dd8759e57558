"""Where an output is not what the tokenizer would make of its text, and who made it so."""

from __future__ import annotations

import pytest
from helpers import ALONE, random_script, scripted_engine
from hypothesis import given
from hypothesis import strategies as st
from made_tokenizers import split_by
from strategies import byte_fallback, byte_level, grammars, unigram

import jumpforward as jf
from jumpforward.decoding.policy import POLICIES
from jumpforward.stats import Provenance
from jumpforward.testing import ScriptedModel, toy_tokenizer
from jumpforward.vocab.canonical import find_seams
from jumpforward.vocab.encoder import PlainEncoder
from jumpforward.vocab.vocabulary import Vocabulary

TOKENIZERS = {
    "toy": lambda: toy_tokenizer(["ab", "abc", ' "', '":', "霍"]),
    "gpt2": byte_level,
    "byte fallback": byte_fallback,
    "unigram": unigram,
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def encoder(request):
    tokenizer = TOKENIZERS[request.param]()
    return PlainEncoder(tokenizer, Vocabulary.from_tokenizer(tokenizer))


@st.composite
def spelled(draw, encoder):
    """Return a text in tokens that are drawn from all that fit."""
    data = draw(st.text('abc": 霍', max_size=10)).encode()
    token_bytes = encoder.vocabulary.token_bytes
    ids = []
    while data:
        fitting = [index for index, piece in enumerate(token_bytes) if piece and data.startswith(piece)]
        ids.append(draw(st.sampled_from(fitting)))
        data = data[len(token_bytes[ids[-1]]) :]
    return ids


@given(data=st.data())
def test_replacing_every_seam_gives_the_canonical_tokens(encoder, data):
    ids = data.draw(spelled(encoder))
    seams = find_seams(encoder, ids)
    text = encoder.vocabulary.text_bytes(ids)
    canonical = encoder.encode(text)
    if canonical is None:
        assert seams is None
        return
    replaced, end = [], 0
    for seam in seams:
        assert end <= seam.start < seam.stop
        replaced += [*ids[end : seam.start], *seam.canonical]
        end = seam.stop
        assert tuple(ids[seam.start : seam.stop]) != seam.canonical
    assert (*replaced, *ids[end:]) == canonical
    assert (seams == []) == (tuple(ids) == canonical)


@given(data=st.data())
def test_seams_have_no_common_border_inside(encoder, data):
    ids = data.draw(spelled(encoder))
    for seam in find_seams(encoder, ids) or []:
        inner = [encoder.vocabulary.text_bytes(ids[seam.start : at]) for at in range(seam.start + 1, seam.stop)]
        other = [encoder.vocabulary.text_bytes(seam.canonical[:at]) for at in range(1, len(seam.canonical))]
        assert not set(inner) & set(other)


def test_the_end_of_an_output_is_no_seam(encoder):
    end = encoder.vocabulary.end_ids[0]
    ids = encoder.encode(b"abc")
    assert find_seams(encoder, [*ids, end]) == find_seams(encoder, []) == []
    lead = encoder.vocabulary.token_bytes.index(b"\xe9")
    assert find_seams(encoder, [*ids, lead]) == []  # an unfinished character has no canonical tokens yet
    assert find_seams(encoder, [*ids, end, *ids]) is None


@given(grammar=grammars, policy=st.sampled_from(sorted(POLICIES)), seed=st.integers(0, 3))
def test_every_result_counts_its_seams(grammar, policy, seed):
    engine = scripted_engine(["ab", "abc", '{"', '":', ' "', '",', "霍"], seed=seed)
    result = engine.generate("a", grammar, policy=policy, max_new_tokens=20)
    seams = find_seams(engine._boundary._encoder, result.token_ids)
    stats = result.stats
    assert stats.num_seams == (None if seams is None else len(seams))
    if seams is not None:
        mixed = [Provenance.FORCED in result.provenance[seam.start : seam.stop] for seam in seams]
        assert stats.num_seams_forced == (sum(mixed) if policy in ("canonical", "retokenize") else 0)


def test_an_engine_says_what_is_canonical():
    engine = scripted_engine(["ab"])
    ab, (a, b) = engine.tokenizer("ab")["input_ids"], b"ab"
    assert engine.is_canonical(ab)
    assert not engine.is_canonical([a, b])
    assert [(seam.start, seam.stop, list(seam.canonical)) for seam in engine.find_seams([b, a, b])] == [(1, 3, ab)]


def test_case_14_a_sampled_token_before_forced_text():
    grammar = jf.regex(r'a(", c|x)')
    for policy, forced, sampled in (("canonical", 1, 0), ("retokenize", 0, 0), ("masked", 0, 2), ("exact", 0, 2)):
        engine = scripted_engine(['",', " c"], script=wants(b'a", c'))
        result = engine.generate("x", grammar, policy=policy)
        assert result.text == 'a", c'
        assert (result.stats.num_seams_forced, result.stats.num_seams_sampled) == (forced, sampled), policy


@pytest.mark.parametrize(
    ("pattern", "is_understood"), [(r"\p{L}++|\P{L}", False), (r"\p{L}+|\P{L}", True)], ids=["possessive", "greedy"]
)
def test_results_say_how_much_is_withheld_since_the_tokenizer_is_not_understood(pattern, is_understood):
    tokenizer = split_by(pattern)
    model = ScriptedModel(random_script(len(tokenizer)), len(tokenizer))
    engine = jf.Engine(model, tokenizer, **ALONE)
    grammar = jf.regex(r'\{"name": "(Ann|And|Bob)", "age": (1|2)\}')
    stats = engine.generate("a", grammar, policy="canonical").stats
    assert (engine.not_understood is None) == is_understood
    whole = sum(map(len, (engine.tokenizer(text)["input_ids"] for text in ('{"name": "', '", "age": '))))
    if is_understood:
        assert (stats.num_withheld_unknown, stats.num_forced > whole) == (0, True)
    else:  # all of it, wherever it is forced
        assert stats.num_withheld_unknown == stats.num_withheld >= whole
        assert f"{stats.num_withheld} ({stats.num_withheld} as the tokenizer is not" in str(stats)
    exact, canonical = (engine.generate("a", grammar, policy=policy).token_ids for policy in ("exact", "canonical"))
    assert is_understood or canonical == exact


def wants(text):
    """Return a script that writes a text byte by byte; the toy vocabulary begins with the 256 bytes."""

    def script(ids):
        logits = [0.0] * 259
        if len(ids) <= len(text):
            logits[text[len(ids) - 1]] = 9.0
        return logits

    return script
