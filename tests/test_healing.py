"""Healing takes back tokens of the prompt that the output's beginning could merge with, and those only."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from helpers import scripted_engine
from hypothesis import given
from hypothesis import strategies as st
from strategies import LETTERS, byte_level, grammars, with_words
from tokenizers import AddedToken

import jumpforward as jf
from jumpforward.decoding.policy import POLICIES
from jumpforward.stats import Provenance
from jumpforward.testing import ScriptedModel

PIECES = [" a", "ab", "abc", '{"', ': "', " ", "霍", '": ']
prompts = st.text(LETTERS, min_size=1, max_size=8)


def healed(engine, prompt, grammar, **options):
    """Return the result, and the tokens of the prompt that are left."""
    result = engine.generate(prompt, grammar, heal=True, max_new_tokens=24, **options)
    return result, engine.tokenizer(prompt)["input_ids"][: result.stats.num_prompt_tokens]


@given(prompt=prompts, grammar=grammars, policy=st.sampled_from(sorted(POLICIES)), seed=st.integers(0, 3))
def test_prompt_and_output_spell_what_they_would_without(prompt, grammar, policy, seed):
    engine = scripted_engine(PIECES, seed=seed)
    result, kept = healed(engine, prompt, grammar, policy=policy)
    vocabulary = engine.vocabulary
    assert kept
    assert vocabulary.text_bytes(kept).decode() + result.healed == prompt
    spelled = vocabulary.text_bytes(result.token_ids)
    assert spelled.startswith(result.healed.encode()[: len(spelled)])
    assert spelled.removeprefix(result.healed.encode()).startswith(result.text.encode())
    assert result.complete <= grammar.accepts(result.text.encode())
    assert len(engine.tokenizer(prompt)["input_ids"]) - len(kept) <= 4


@given(prompt=prompts, grammar=grammars, temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 3))
def test_law_7_holds_behind_a_healed_prompt(prompt, grammar, temperature, seed):
    options = {"temperature": temperature, "seed": seed} if temperature else {}
    masked, exact = (
        healed(scripted_engine(PIECES, seed=seed), prompt, grammar, policy=policy, **options)[0]
        for policy in ("masked", "exact")
    )
    assert (masked.token_ids, masked.text, masked.healed) == (exact.token_ids, exact.text, exact.healed)


@given(prompt=prompts, grammar=grammars, policy=st.sampled_from(sorted(POLICIES)))
def test_provenance_names_the_tokens_that_hold_text_of_the_prompt(prompt, grammar, policy):
    engine = scripted_engine(PIECES)
    result, _ = healed(engine, prompt, grammar, policy=policy)
    num_bytes = len(result.healed.encode())
    for token, kind in zip(result.token_ids, result.provenance, strict=True):
        assert (kind is Provenance.HEALED) == (num_bytes > 0)
        num_bytes = max(0, num_bytes - len(engine.vocabulary.token_bytes[token]))
    assert result.stats.num_healed == result.provenance.count(Provenance.HEALED)


@cache
def trained_engine(*added):
    tokenizer = with_words(byte_level(), *added) if added else byte_level()
    model = ScriptedModel(lambda ids: np.random.default_rng(ids).normal(0, 3, len(tokenizer)), len(tokenizer))
    return jf.Engine(model, tokenizer)


@pytest.mark.parametrize(
    ("prompt", "options", "taken"),
    [
        pytest.param("The answer is ", ["yes", "no"], " ", id="20"),
        pytest.param("The answer is", [" yes", " no"], "", id="a word's end stays in front of a space"),
        pytest.param("The ans", ["wer", "wers"], " ans", id="inside a word"),
        pytest.param("As JSON:\n", ['{"a": 1}', "[]"], "", id="a line's end stays in front of a bracket"),
        pytest.param("The answer is ", ["-"], "", id="no token begins with a space and a dash"),
    ],
)
def test_case_20_what_is_taken_back(prompt, options, taken):
    result, _ = healed(trained_engine(), prompt, jf.choice(options))
    assert result.healed == taken
    plain = trained_engine().generate(prompt, jf.choice(options))
    assert plain.healed == ""
    assert plain.stats.num_prompt_tokens == len(trained_engine().tokenizer(prompt)["input_ids"])


def test_special_tokens_are_never_taken_back():
    engine = trained_engine()
    prompt = "The<|start|>"
    result, kept = healed(engine, prompt, jf.choice(["answer", "answers"]))
    assert result.healed == ""
    assert kept == engine.tokenizer(prompt)["input_ids"]


def test_a_prompt_of_one_token_stays():
    engine = trained_engine()
    result, kept = healed(engine, "a", jf.choice(["nswer", "n"]))
    assert (result.healed, len(kept)) == ("", 1)


def test_an_added_word_that_could_begin_is_taken_back():
    engine = trained_engine(AddedToken("<tool>"))
    result, _ = healed(engine, "call <to", jf.choice(["ol>", "y"]))
    assert result.healed.endswith("<to")
