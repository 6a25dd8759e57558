"""The policy `retokenize`: the tokens of an output are those of its text."""

from __future__ import annotations

from functools import cache
from itertools import accumulate

import numpy as np
import pytest
import torch
import xgrammar
from helpers import fresh_logits, scripted_engine, start, step, tiny_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tokenizers import KINDS
from strategies import EBNF, grammars

import jumpforward as jf
from jumpforward.grammar.bytewise import np_bits
from jumpforward.stats import Provenance
from jumpforward.testing import ScriptedModel
from jumpforward.vocab.agreeing import common_beginning

PIECES = ["ab", "abc", '{"', '":', ' "', '",', '": "', "霍", "ba"]


@cache
def engine_of(kind):
    return tiny_engine(kind, PIECES, seed=3)


def slowly(engine, grammar, limit):
    """Retokenize the plain way: encode everything again at every jump, and run the model without a cache."""
    encoder, vocabulary = engine._boundary._encoder, engine.vocabulary
    prompt, ids = engine.tokenizer("a")["input_ids"], []
    bitmask = xgrammar.allocate_token_bitmask(1, vocabulary.width)
    while True:
        matcher = engine.compiler.compile(grammar).matcher()
        assert all(map(matcher.consume, ids))
        if forced := matcher.forced_bytes():
            whole = encoder.encode(vocabulary.text_bytes(ids) + forced)
            if whole is not None:
                ids = list(whole)
                continue
        matcher.fill_bitmask(bitmask, 0)
        legal = torch.from_numpy(np_bits(bitmask.numpy()[0]))[: vocabulary.width]
        logits = fresh_logits(engine.model, [*prompt, *ids])[-1].masked_fill(~legal, -torch.inf)
        token = int(logits.argmax())
        if token in vocabulary.end_ids:
            return [*(encoder.encode(vocabulary.text_bytes(ids)) or ids), token]
        ids.append(token)
        if len(ids) > limit:
            return None


@settings(max_examples=40)
@given(grammar=grammars, kind=st.sampled_from(["llama", "gemma3"]))
def test_law_8_cropped_and_rewritten_is_as_good_as_new(grammar, kind):
    engine = engine_of(kind)
    expected = slowly(engine, grammar, 30)
    if expected is not None and len(expected) <= 40:
        assert engine.generate("a", grammar, policy="retokenize", max_new_tokens=60).token_ids == expected


REWRITES = [  # pieces, a grammar, how the model spells a text of it, and the text's tokens
    pytest.param(["ab", "abc"], "(a|x)(b|y)c(d|e)", "a b c d", "abc d", id="shorter"),
    pytest.param(["abc"], "(abc|q)x(y|z)", "abc x y", "a b c x y", id="longer"),
    pytest.param(["ab", "ba"], "(a|x)(ba|y)q(r|s)", "a ba q r", "ab a q r", id="as long"),
    pytest.param(["ab", "cd"], "(a|x)b(c|d)d(a|b)", "a b c d a", "ab cd a", id="one behind the other"),
    pytest.param(
        ["fg", "ef", "de", "cd", "bc", "ab"], "(ab|q)cdef(gh|xy)", "ab cdef g h", "a bc de fg h", id="far back"
    ),
    pytest.param(["ab"], "(a|x)c(a|b)b(d|e)", "a c a b d", "a c ab d", id="behind forced text"),
    pytest.param(["bc"], "(a|x)(b|y)c(d|e)", "a b c d", "a bc d", id="only its end"),
    pytest.param(["ab"], "(x|a)(a|b)", "a b", "ab", id="when all is written"),
]


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@pytest.mark.parametrize(("pieces", "pattern", "written", "tokens"), REWRITES)
def test_law_8_behind_every_rewrite_what_changed_is_fed_and_no_more(
    kind, pieces, pattern, written, tokens, monkeypatch
):
    engine = tiny_engine(kind, pieces)
    spell = engine.vocabulary.token_bytes.__getitem__
    run = start(
        engine, jf.regex(pattern), "retokenize", processor=preferring(written.encode().split(), engine.vocabulary)
    )
    passes = watch(engine, run, monkeypatch)
    while not run.is_finished:
        step(engine, run)
    result = run.result()
    assert [spell(token).decode() for token in result.token_ids if spell(token)] == tokens.split()
    assert result.stats.num_retokenized > 0
    before, num_cropped = (), 0
    for cached, ids in passes:
        assert cached == min(len(common_beginning([before, ids])), len(ids) - 1)
        num_cropped += len(before) - cached
        before = ids
    assert num_cropped + len(before) - run.row.length == result.stats.num_cropped


def watch(engine, run, monkeypatch):
    """Hold all of a run's passes to a fresh prefill; return a list of what was cached and of all ids, for each."""
    passes, forward = [], engine._runner.forward

    def watched(cache, chunks, keep, rows):
        cached = run.row.length
        logits = forward(cache, chunks, keep, rows)
        ids = (*run.sequence.tokens_from(0)[:cached], *chunks[0])
        expected = fresh_logits(engine.model, ids)[cached:][list(keep[0])]
        assert torch.allclose(logits[0], expected, atol=1e-4)
        passes.append((cached, ids))
        return logits

    monkeypatch.setattr(engine._runner, "forward", watched)
    return passes


def preferring(pieces, vocabulary):
    """Return a processor under which the model spells a text in these pieces."""
    ids = {token: index for index, token in enumerate(vocabulary.token_bytes)}
    starts = accumulate(map(len, pieces), initial=0)
    wanted = {start: ids[piece] for start, piece in zip(starts, pieces, strict=False) if piece in ids}

    def processor(output, logits):
        token = wanted.get(len(vocabulary.text_bytes(output)))
        return logits if token is None else logits.index_fill(0, torch.tensor(token), 99.0)

    return processor


@given(grammar=grammars, seed=st.integers(0, 5), temperature=st.sampled_from([0.0, 1.0]), limit=st.integers(1, 40))
@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        "llama3",
        "byte fallback",
        "byte fallback, nothing prepended",
        "chain behind NFC",
        "groups from the right, then words",
        "unigram, ties",
        "added words",
        "toy",
    ],
)
def test_ids_are_the_tokens_of_the_text(name, grammar, seed, temperature, limit):
    engine = engine_over(name, seed)
    result = engine.generate(
        "a",
        grammar,
        policy="retokenize",
        temperature=temperature,
        max_new_tokens=limit,
        seed=seed if temperature else None,
    )
    encoder = engine._boundary._encoder
    ids = [token for token in result.token_ids if token not in engine.vocabulary.end_ids]
    canonical = encoder.encode(result.text.encode())
    has_all = engine.vocabulary.text_bytes(ids) == result.text.encode()  # not cut inside a character
    if canonical is not None and has_all and len(canonical) < limit:
        assert ids == list(canonical)
        assert result.stats.num_seams == 0
    assert len(result.token_ids) <= limit
    stats = result.stats
    assert stats.num_sampled + stats.num_forced + stats.num_retokenized == stats.num_output_tokens
    for kind, logprob in zip(result.provenance, result.logprobs or [], strict=False):
        assert kind is not Provenance.RETOKENIZED or logprob is None


@cache
def tokenizer_of(name):
    return KINDS[name]()


def engine_over(name, seed):
    if name == "toy":
        return scripted_engine(PIECES, seed=seed)
    tokenizer = tokenizer_of(name)
    width = len(tokenizer)

    def script(ids):
        return np.random.default_rng([seed, *ids]).normal(0, 3, width).astype(np.float32)

    return jf.Engine(ScriptedModel(script, width), tokenizer)


class Told:
    """A transformers streamer that writes down what it gets."""

    def __init__(self):
        self.ids, self.ended = [], False

    def put(self, ids):
        self.ids.append(ids.tolist())

    def end(self):
        self.ended = True


@given(grammar=grammars, seed=st.integers(0, 5))
def test_case_32_streams_take_nothing_back(grammar, seed):
    engine, told = scripted_engine(PIECES, seed=seed), Told()
    pieces = engine.stream("a", grammar, policy="retokenize", max_new_tokens=24, streamer=told)
    assert "".join(pieces) == pieces.result.text
    assert [token for part in told.ids[1:] for token in part] == pieces.result.token_ids
    assert told.ended


@given(grammar=grammars, seed=st.integers(0, 5))
def test_logprobs_of_rewritten_tokens_are_unknown(grammar, seed):
    result = scripted_engine(PIECES, seed=seed).generate(
        "a", grammar, policy="retokenize", max_new_tokens=24, logprobs=True
    )
    for kind, logprob in zip(result.provenance, result.logprobs, strict=True):
        assert kind is not Provenance.RETOKENIZED or logprob is None
        assert kind is not Provenance.SAMPLED or logprob is not None


def test_case_14_provenance_tells_what_was_rewritten():
    engine = scripted_engine(['",', " c"], script=lambda ids: bytewise(b'a", c', ids))
    result = engine.generate("x", jf.regex(r'a(", c|x)'), policy="retokenize")
    spelled = [engine.vocabulary.token_bytes[token] for token in result.token_ids]
    assert spelled == [b"a", b'",', b" c", b""]
    assert result.provenance == ["forced", "retokenized", "forced", "forced"]
    assert result.stats.num_cropped > 0 or result.stats.num_forward_passes <= 2


def bytewise(text, ids):
    logits = np.zeros(259, dtype=np.float32)
    if len(ids) <= len(text):
        logits[text[len(ids) - 1]] = 9.0
    return logits


def wanting(*tokens):
    """Return a script that wants these tokens, in this order wherever they are legal."""

    def script(ids):
        logits = np.zeros(300, dtype=np.float32)
        for rank, token in enumerate(tokens):
            logits[token] = 9.0 - rank
        return logits[: 257 + len(LONG)]

    return script


LONG = ["abc"]  # a token that no merge makes: the tokenizer spells it in three


def test_case_37_a_rewrite_that_has_no_room_changes_nothing():
    engine = scripted_engine(LONG, script=wanting(256))
    grammar = jf.regex("(abc|q)x")
    spelled = {}
    for limit in (2, 3, 4, 5):
        result = engine.generate("q", grammar, policy="retokenize", max_new_tokens=limit, ensure_complete=True)
        assert result.complete
        spelled[limit] = [engine.vocabulary.token_bytes[token] for token in result.token_ids]
    assert spelled[2] == [b"abc", b"x"]
    assert spelled[3] == [b"abc", b"x", b""]  # three tokens for `abc` would fit, and leave no room for `x`
    assert spelled[4] == [b"a", b"b", b"c", b"x"]
    assert spelled[5] == [b"a", b"b", b"c", b"x", b""]


def test_case_32_tokens_are_told_when_nothing_can_change_them():
    chain = ["fg", "ef", "de", "cd", "bc", "ab"]
    ab, g = 256 + chain.index("ab"), ord("g")
    engine, told = scripted_engine(chain, script=lambda ids: [9.0 * (token in (ab, g)) for token in range(263)]), Told()
    pieces = engine.stream("q", jf.regex("(ab|q)cdef(gh|xy)"), policy="retokenize", streamer=told)
    assert "".join(pieces) == "abcdefgh"
    assert [token for part in told.ids[1:] for token in part] == pieces.result.token_ids
    kinds = ["retokenized", "retokenized", "forced", "retokenized", "forced", "forced"]
    assert pieces.result.provenance == kinds  # a, bc, de, fg, h, the end


def test_a_budget_that_ensures_completion_holds():
    engine = scripted_engine(PIECES)
    grammar = jf.choice(["abcabc", "abcba", 'ab": "霍'])
    for limit in range(2, 9):
        try:
            result = engine.generate("a", grammar, policy="retokenize", max_new_tokens=limit, ensure_complete=True)
        except jf.OptionError:
            continue
        assert result.complete


@pytest.mark.parametrize("rules", EBNF)
def test_recursive_models_refuse_to_go_back(rules):
    engine = tiny_engine("mamba", PIECES)
    with pytest.raises(jf.RollbackUnsupportedError, match="takes tokens back"):
        engine.generate("a", jf.ebnf(rules), policy="retokenize")
