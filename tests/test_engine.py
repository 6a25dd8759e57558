"""Laws 9, 11, 12, 13 and 14, and what the engine does at the edges."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pydantic
import pytest
import torch
from helpers import (
    LegalGuesses,
    favouring,
    fresh_logits,
    random_script,
    scripted_engine,
    set_drafters,
    start,
    step,
    tiny_engine,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import grammars, languages
from tokenizers import normalizers
from transformers import TextStreamer
from transformers.generation.streamers import BaseStreamer

import jumpforward as jf
from jumpforward.decoding.drafter import Bid, Drafter, DraftView
from jumpforward.decoding.policy import POLICIES
from jumpforward.decoding.sampling import SamplingOptions
from jumpforward.engine.run import Run
from jumpforward.stats import Provenance
from jumpforward.testing import END, ScriptedModel, toy_tokenizer

PIECES = ['{"', '":', ' "', '",', "ab", "abc", "true", "霍", ": ", ", ", "10"]
POLICY_NAMES = sorted(POLICIES)
RECORD = {"type": "object", "properties": {"ab": {"type": "boolean"}}, "required": ["ab"]}


@given(
    grammar=grammars,
    policy=st.sampled_from(POLICY_NAMES),
    seed=st.integers(0, 3),
    limit=st.integers(1, 20),
    len_guess=st.integers(0, 6),
)
def test_laws_9_and_14_counts_conserve_and_the_limit_holds(
    grammar: jf.Grammar, policy: str, seed: int, limit: int, len_guess: int
) -> None:
    engine = scripted_engine(PIECES, seed=seed)
    set_drafters(engine, *engine._drafting.drafters, LegalGuesses(seed, len_guess, engine.vocabulary.width))
    script, lengths = engine.model.script, [0]
    engine.model.script = lambda ids: lengths.append(len(ids)) or script(ids)
    run = start(engine, grammar, policy, max_new_tokens=limit)
    while not run.is_finished:
        num_final = run.sequence.num_final
        before = run.sequence.output_ids[:num_final], run.sequence.provenance[:num_final], bytes(run.sequence.data)
        num_before = len(run.sequence.output_ids)
        step(engine, run)
        # Case 36: what is cached is a beginning of the sequence, and something is left to feed.
        cached = run.row.length
        assert cached <= len(run.sequence) - 1
        # Case 14: what was made is never rewritten, unless it was marked so, and every step makes something.
        ids, provenance, data = before
        assert len(run.sequence.data) > len(data) or len(run.sequence.output_ids) > num_before
        assert run.sequence.output_ids[: len(ids)] == ids
        assert run.sequence.provenance[: len(ids)] == provenance
        assert run.sequence.data.startswith(data)
    result = run.result()
    stats = result.stats
    num_rewritten = stats.num_retokenized + stats.num_healed
    assert stats.num_sampled + stats.num_forced + stats.num_drafted + num_rewritten == stats.num_output_tokens
    assert stats.num_output_tokens == len(result.token_ids) == len(result.provenance) <= limit
    assert stats.num_drafted + stats.num_rejected == stats.num_proposed
    assert stats.num_prompt_tokens == 1
    assert stats.num_forward_passes == len(engine.model.calls) == sum(stats.chunk_lengths.values())
    fed = [row for call in engine.model.calls for row in call]
    assert sorted(map(len, fed)) == sorted(
        length for length, count in stats.chunk_lengths.items() for _ in range(count)
    )
    assert sum(map(len, fed)) == run.row.length + stats.num_cropped
    assert (result.finish_reason == "length") <= (len(result.token_ids) == limit)
    assert max(lengths) <= stats.num_prompt_tokens + limit - 1  # nothing is asked behind the last possible token
    assert result.complete == grammar.accepts(engine.vocabulary.text_bytes(result.token_ids))


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_case_30_the_limit_falls_inside_forced_text(policy: str) -> None:
    grammar = jf.choice(["abcabcabcabcabcabc!x", "abcabcabcabcabcabc!y"])
    engine = scripted_engine(["abc"])
    for limit in (1, 3, 6):
        result = engine.generate("a", grammar, policy=policy, max_new_tokens=limit)
        assert len(result.token_ids) == limit
        assert (result.finish_reason, result.complete, result.parsed) == ("length", False, None)


def test_case_4_a_long_forced_run_is_one_chunk_or_a_few_under_a_cap() -> None:
    grammar = jf.regex("(ab){200}z(x|y)")
    engine = scripted_engine(["ab"])
    assert engine.generate("a", grammar, policy="canonical", max_new_tokens=300).stats.num_forward_passes == 1
    capped = scripted_engine(["ab"], max_draft=50)
    result = capped.generate("a", grammar, policy="canonical", max_new_tokens=300)
    assert result.complete
    assert result.stats.num_forward_passes <= 6


@pytest.mark.parametrize("policy", ["exact", "canonical"])
def test_no_pass_where_nothing_is_left_to_the_model(policy: str) -> None:
    engine = scripted_engine(single_bytes=range(97, 123))
    result = engine.generate("a", jf.choice(["xyz"]), policy=policy)
    assert result.text == "xyz"
    assert engine.model.calls == []
    assert set(result.provenance) == {Provenance.FORCED}
    assert engine.generate("a", jf.choice(["x", "y"]), policy=policy).stats.num_forward_passes == 1


def test_masked_makes_one_pass_a_token() -> None:
    engine = scripted_engine(PIECES)
    result = engine.generate("a", jf.json_schema(RECORD), policy="masked")
    assert result.stats.num_forward_passes == len(result.token_ids) == len(engine.model.calls)
    assert set(result.provenance) == {Provenance.SAMPLED}


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_case_8_the_end_token_as_favourite_at_a_forced_place(policy: str) -> None:
    tokenizer = toy_tokenizer(PIECES)
    width = len(tokenizer)
    logits = np.zeros(width, dtype=np.float32)
    logits[tokenizer.eos_token_id] = 50
    engine = scripted_engine(PIECES, script=lambda _: logits)
    result = engine.generate("a", jf.json_schema(RECORD), policy=policy)
    assert result.parsed in ({"ab": True}, {"ab": False})
    assert result.token_ids[-1] == tokenizer.eos_token_id
    assert result.finish_reason == "end"


def test_case_34_every_end_id_ends() -> None:
    tokenizer = toy_tokenizer(PIECES)
    other = tokenizer.convert_tokens_to_ids("abc")
    for favourite in (other, tokenizer.eos_token_id):
        logits = np.zeros(len(tokenizer), dtype=np.float32)
        logits[favourite] = 9
        engine = scripted_engine(PIECES, script=lambda _, logits=logits: logits)
        engine.model.generation_config = type("Config", (), {"eos_token_id": [other, tokenizer.eos_token_id]})()
        engine = jf.Engine(engine.model, tokenizer)
        assert engine.vocabulary.end_ids == (other, tokenizer.eos_token_id)
        result = engine.generate("a", jf.regex("a(b|c)?"))
        assert result.token_ids[-1] == favourite
        assert result.text in ("a", "ab", "ac")


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 0}])
def test_case_41_a_padded_tail_is_never_sampled(policy: str, options: dict[str, Any]) -> None:
    tokenizer = toy_tokenizer(PIECES)

    def script(ids: Any) -> np.ndarray:
        logits = random_script(len(tokenizer) + 40)(ids)
        logits[len(tokenizer) :] = 1e6
        return logits

    engine = scripted_engine(PIECES, script=script, padding=40)
    assert engine.vocabulary.width == len(tokenizer) + 40
    result = engine.generate("a", jf.json_schema(RECORD), policy=policy, **options)
    assert result.complete
    assert max(result.token_ids) < len(tokenizer)


@pytest.mark.parametrize("automata", [True, False])
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_case_42_a_byte_that_no_token_spells(policy: str, automata: bool) -> None:
    engine = scripted_engine(single_bytes=range(97, 123), automata=automata)
    with pytest.raises(jf.EmptyMaskError) as caught:
        engine.generate("a", jf.choice(["ab1", "ab2"]), policy=policy)
    # The automaton knows before the first token that no way leads to the end.
    assert caught.value.text == ("" if automata else "ab")
    assert caught.value.missing_bytes == b"12"
    assert "b'1'" in str(caught.value)
    assert engine.model.calls == [] or not automata
    assert engine.generate("a", jf.choice(["ab1", "abc"]), policy=policy).text == "abc" or not automata


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_case_42_where_the_bytes_are_missed_behind_the_launch(policy: str) -> None:
    """The grammar has a choice, between bytes that the vocabulary does not have."""
    engine = scripted_engine(single_bytes=range(32, 256))
    with pytest.raises(jf.EmptyMaskError) as caught:
        engine.generate("a", jf.ebnf(r'root ::= "ab" [\x01\x02]'), policy=policy)
    assert (caught.value.text, caught.value.missing_bytes) == ("ab", b"\x01\x02")
    assert engine.generate("a", jf.ebnf('root ::= "ab" [cd]'), policy=policy).complete


@given(
    language=languages,
    policy=st.sampled_from(POLICY_NAMES),
    seed=st.integers(0, 3),
    spare=st.integers(0, 3),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_with_ensure_complete_every_result_is_complete(
    language: list[str], policy: str, seed: int, spare: int, temperature: float
) -> None:
    engine = scripted_engine(PIECES, seed=seed)
    options = {"temperature": temperature, "seed": seed if temperature else None, "ensure_complete": True}
    grammar = jf.choice(language)
    least = max(1, engine.compiler.automaton(grammar).fewest_tokens)
    with pytest.raises(jf.OptionError, match=f"at least {least}"):
        engine.generate("a", grammar, policy=policy, max_new_tokens=least - 1, **options)
    assert engine.model.calls == []
    result = engine.generate("a", grammar, policy=policy, max_new_tokens=least + spare, **options)
    assert result.complete
    assert result.text in language
    masked = engine.generate("a", grammar, policy="masked", max_new_tokens=least + spare, **options)
    assert masked.token_ids == result.token_ids or POLICIES[policy].forces


def test_ensure_complete_needs_a_regular_grammar() -> None:
    engine = scripted_engine(PIECES)
    with pytest.raises(jf.OptionError, match="regular grammar"):
        engine.generate("a", jf.json_schema(RECORD), ensure_complete=True)
    endless = jf.regex("(ab|b)+")
    for limit in range(2, 9):
        assert engine.generate("a", endless, ensure_complete=True, max_new_tokens=limit).complete


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 0}])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_case_43_logits_without_a_legal_maximum(policy: str, options: dict[str, Any], value: float) -> None:
    width = len(toy_tokenizer(PIECES))

    def script(ids: Any) -> np.ndarray:
        return random_script(width)(ids) if len(ids) < 8 else np.full(width, value, dtype=np.float32)

    engine = scripted_engine(PIECES, script=script)
    with pytest.raises(jf.BadLogitsError) as caught:
        engine.generate("a", jf.regex("[ab]{20}"), policy=policy, **options)
    assert 7 <= len(caught.value.text) <= 20
    assert not isinstance(caught.value, ValueError)


def test_nan_among_illegal_tokens_does_not_matter() -> None:
    tokenizer = toy_tokenizer(PIECES)

    def script(ids: Any) -> np.ndarray:
        logits = random_script(len(tokenizer))(ids)
        logits[tokenizer.convert_tokens_to_ids("z")] = np.nan
        return logits

    engine = scripted_engine(PIECES, script=script)
    for options in ({}, {"temperature": 1.0, "seed": 0}):
        assert engine.generate("a", jf.regex("[ab]{5}"), **options).complete


def test_law_11_an_error_leaves_the_sequence_as_the_last_token_left_it() -> None:
    width = len(toy_tokenizer(PIECES))

    def script(ids: Any) -> np.ndarray:
        return random_script(width)(ids) if len(ids) < 8 else np.full(width, np.nan, dtype=np.float32)

    engine = scripted_engine(PIECES, script=script)
    run = start(engine, jf.regex("[ab]{20}"), "exact")
    with pytest.raises(jf.BadLogitsError):
        list(iter(lambda: step(engine, run), False))  # step until it raises
    ids, data = list(run.sequence.output_ids), bytes(run.sequence.data)
    cached = run.row.length
    assert cached == len(run.sequence) - 1
    assert engine.vocabulary.text_bytes(ids) == data
    fresh = engine.compiler.compile(jf.regex("[ab]{20}")).matcher()
    assert all(fresh.consume(token) for token in ids)
    assert fresh.forced_bytes() == run.matcher.forced_bytes()
    with pytest.raises(jf.BadLogitsError):  # and again, from the same place
        step(engine, run)
    assert run.sequence.output_ids == ids


def finished(engine: jf.Engine, run: Run, errors: type[Exception] | tuple[()] = ()) -> jf.Result:
    """Step a run to its end, past errors."""
    while not run.is_finished:
        try:
            step(engine, run)
        except errors:
            cached = run.row.length
            assert cached <= len(run.sequence) - 1
            assert run._vocabulary.text_bytes(run.sequence.output_ids) == bytes(run.sequence.data)
    return run.result()


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("num_good", range(2))
def test_law_11_a_pass_that_fails_can_be_made_again(policy: str, num_good: int) -> None:
    grammar = jf.json_schema(RECORD | {"properties": {"ab": {"type": "boolean"}, "b": {"type": "boolean"}}})
    engine = scripted_engine(PIECES)
    undisturbed = finished(engine, start(engine, grammar, policy))
    engine.model.calls.clear()
    script = engine.model.script
    asked = []

    def failing(ids: Any) -> Any:
        asked.append(ids)
        if len(asked) == num_good + 1:
            raise MemoryError
        return script(ids)

    engine.model.script = failing
    result = finished(engine, start(engine, grammar, policy), MemoryError)
    assert len(asked) > num_good
    assert (result.token_ids, result.provenance) == (undisturbed.token_ids, undisturbed.provenance)
    assert result.stats.num_forward_passes == undisturbed.stats.num_forward_passes


class FailsBehindItsDraft(Drafter):
    """Drafts two tokens of an output; asked for more behind them, it fails the first time at every place."""

    name = "fails"

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._failed_at: set[int] = set()

    def propose(self, view: DraftView) -> Bid:
        place = len(view.output_ids)
        if place % 3 == 2 and place not in self._failed_at:
            self._failed_at.add(place)
            raise LookupError
        return Bid(self._tokens[place : place + 2], 0.99)


@pytest.mark.parametrize("automata", [True, False])
@pytest.mark.parametrize("policy", ["exact", "canonical"])
def test_law_11_a_drafter_that_raises_leaves_no_trace(policy: str, automata: bool) -> None:
    grammar = jf.regex("[ab]{12}")
    engine = scripted_engine(PIECES, automata=automata)
    undisturbed = finished(engine, start(engine, grammar, policy))
    set_drafters(engine, FailsBehindItsDraft(undisturbed.token_ids))
    run = start(engine, grammar, policy)
    with pytest.raises(LookupError):
        step(engine, run)
    assert run.sequence.output_ids == []
    with pytest.raises(ValueError, match="cannot undo"):  # the matcher stands at the start
        run.matcher.rollback(1)
    assert finished(engine, run, LookupError).token_ids == undisturbed.token_ids


@given(text=st.text(st.sampled_from("<end>a霍 "), min_size=1, max_size=12), policy=st.sampled_from(POLICY_NAMES))
@settings(max_examples=40)
def test_law_12_forced_text_never_becomes_a_special_token(text: str, policy: str) -> None:
    engine = scripted_engine(PIECES)
    for constant in (text, END, f"a{END}b"):
        result = engine.generate("a", jf.json_schema({"const": constant}), policy=policy)
        assert result.parsed == constant
        assert result.token_ids.count(engine.tokenizer.eos_token_id) == 1


STOPS = st.sampled_from([None, "b", "ab", 'b":', "霍", "t", "true}", ["zz", ": "]])


@given(grammar=grammars, policy=st.sampled_from(POLICY_NAMES), seed=st.integers(0, 3), stop=STOPS)
def test_law_13_the_stream_is_the_text(grammar: jf.Grammar, policy: str, seed: int, stop: Any) -> None:
    engine = scripted_engine(PIECES, seed=seed)
    pieces = engine.stream("a", grammar, policy=policy, max_new_tokens=16, stop=stop)
    texts = list(pieces)
    assert pieces.result is not None
    assert "".join(texts) == pieces.result.text
    assert all(texts)
    assert "\ufffd" not in pieces.result.text
    for string in [stop] if isinstance(stop, str) else stop or []:
        assert string not in pieces.result.text


def test_case_26_half_a_character_is_held_back() -> None:
    engine = scripted_engine(single_bytes=range(256))
    pieces = list(engine.stream("a", jf.regex("😨(a|b)"), policy="masked"))
    assert pieces[0] == "😨"
    cut = engine.generate("a", jf.regex("😨(a|b)"), policy="masked", max_new_tokens=2)
    assert cut.text == ""
    assert not cut.complete
    for policy in POLICY_NAMES:
        first, second, last = engine.stream("a", jf.regex("[😀-🙏]{2}x"), policy=policy)
        assert all("😀" <= character <= "🙏" for character in (first, second))
        assert last == "x"


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_the_beginning_of_a_stop_string_is_held_back(policy: str) -> None:
    tokenizer = toy_tokenizer()
    # The text begins a stop string twice, and only the second time goes on with it.
    for text, stop, pieces in (("xabyabc", "abc", "xaby"), ("xabyabz", "abc", "xabyabz")):
        engine = scripted_engine(script=favouring(text, tokenizer))
        shown = engine.stream("a", jf.regex("[a-z]{7}"), policy=policy, stop=stop)
        seen = ""
        for piece in shown:
            seen += piece
            assert pieces.startswith(seen)
        assert shown.result.text == seen == pieces


def test_case_17_forced_text_that_the_tokenizer_would_change() -> None:
    tokenizer = toy_tokenizer(["caf", " is"])
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    engine = jf.Engine(ScriptedModel(random_script(len(tokenizer)), len(tokenizer)), tokenizer)
    options = ["cafe\u0301 is x", "cafe\u0301 is y"]
    results = {policy: engine.generate("a", jf.choice(options), policy=policy) for policy in POLICY_NAMES}
    assert all(result.text in options and result.complete for result in results.values())
    # Nothing could be committed, so that canonical, too, left every choice to the model.
    assert results["exact"].token_ids == results["masked"].token_ids == results["canonical"].token_ids


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_case_31_a_stop_string_inside_forced_text_and_across_tokens(policy: str) -> None:
    engine = scripted_engine(["ab", "cd"], script=favouring("xabcdx", toy_tokenizer(["ab", "cd"])))
    result = engine.generate("a", jf.choice(["xabcdx", "xabcdy"]), policy=policy, stop="bc")
    assert (result.text, result.finish_reason, result.complete) == ("xa", "stop", False)
    whole = engine.generate("a", jf.regex("xa(bcdx)?"), policy=policy, stop="bc")
    assert (whole.text, whole.complete) == ("xa", True)
    # One token completes two stop strings: the first in the text counts.
    pieces = ["ab", "cd", "abcd"]
    both = scripted_engine(pieces, script=favouring("xabcdx", toy_tokenizer(pieces)))
    cut = both.generate("a", jf.regex("[a-dx]{6}"), policy=policy, stop=["cd", "bc"])
    assert (cut.text, len(cut.token_ids)) == ("xa", 2)


def test_transformers_streamers_get_the_prompt_and_then_every_token() -> None:
    class Collect(BaseStreamer):
        def __init__(self) -> None:
            self.got: list[list[int]] = []
            self.ended = False

        def put(self, value: torch.Tensor) -> None:
            self.got.append(value.flatten().tolist())

        def end(self) -> None:
            self.ended = True

    engine = scripted_engine(PIECES)
    collect = Collect()
    result = engine.generate("a", jf.json_schema(RECORD), streamer=collect)
    assert collect.got[0] == engine.tokenizer("a")["input_ids"]
    assert [token for put in collect.got[1:] for token in put] == result.token_ids
    assert collect.ended


def test_transformers_text_streamer_prints_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    engine = scripted_engine(PIECES)
    streamer = TextStreamer(engine.tokenizer, skip_prompt=True, skip_special_tokens=True)
    result = engine.generate("a", jf.json_schema(RECORD), streamer=streamer)
    assert capsys.readouterr().out.strip() == result.text


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_k": 9, "seed": 5}])
def test_case_33_logprobs_are_the_models_own(policy: str, options: dict[str, Any]) -> None:
    engine = tiny_engine("llama", PIECES)
    schema = {
        "type": "object",
        "properties": {"ab": {"type": "boolean"}, "n": {"enum": [10, 11]}},
        "required": ["ab", "n"],
    }
    plain = engine.generate("ab", jf.json_schema(schema), policy=policy, **options)
    result = engine.generate("ab", jf.json_schema(schema), policy=policy, logprobs=True, **options)
    assert plain.logprobs is None
    assert result.token_ids == plain.token_ids
    prompt = engine.tokenizer("ab")["input_ids"]
    logits = fresh_logits(engine.model, [*prompt, *result.token_ids]).log_softmax(-1)
    for index, (token, logprob) in enumerate(zip(result.token_ids, result.logprobs, strict=True)):
        if logprob is not None:
            assert logprob == pytest.approx(float(logits[len(prompt) - 1 + index, token]), abs=1e-3)
    known = [logprob is not None for logprob in result.logprobs]
    assert known == sorted(known, reverse=True)  # only the last tokens can be without a pass
    assert all(known) or policy != "masked"
    assert sum(known) >= len(known) - 3


def test_a_seed_is_drawn_recorded_and_repeatable() -> None:
    engine = scripted_engine(PIECES)
    grammar = jf.regex("[a-z]{12}")
    first = engine.generate("a", grammar, temperature=1.0)
    second = engine.generate("a", grammar, temperature=1.0)
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    assert engine.generate("a", grammar, temperature=1.0, seed=first.seed).token_ids == first.token_ids
    assert engine.generate("a", grammar).seed is None


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_cases_38_and_40_interleaved_requests_are_as_alone(policy: str) -> None:
    engine = scripted_engine(PIECES)
    grammar = jf.regex("(ab|abc|c){1,6}")
    options = [{"sampling": SamplingOptions(temperature=1.0, seed=seed)} for seed in (1, 2)]
    alone = []
    for option in options:
        run = start(engine, grammar, policy, **option)
        while not run.is_finished:
            step(engine, run)
        alone.append(run.result().token_ids)
    runs = [start(engine, grammar, policy, **option) for option in options]
    while not all(run.is_finished for run in runs):
        for run in runs:
            if not run.is_finished:
                step(engine, run)
    assert [run.result().token_ids for run in runs] == alone


BAD_OPTIONS: list[dict[str, Any]] = [
    {"policy": "fast"},
    {"policy": ["exact"]},
    {"max_new_tokens": 0},
    {"max_new_tokens": 2.5},
    {"max_new_tokens": True},
    {"temperature": -1.0},
    {"temperature": float("nan")},
    {"temperature": float("inf")},
    {"temperature": "hot"},
    {"temperature": None},
    {"temperature": 1e-45},  # a logit divided by it is infinite, and a difference of infinities not a number
    {"temperature": 1e300},  # infinite in float32, as the logit of an illegal token is
    {"top_k": 2.5, "temperature": 1.0},
    {"top_p": "half", "temperature": 1.0},
    {"seed": 1.5, "temperature": 1.0},
    {"seed": True, "temperature": 1.0},
    {"top_k": 0, "temperature": 1.0},
    {"top_p": 0.0, "temperature": 1.0},
    {"top_p": 1.5, "temperature": 1.0},
    {"min_p": -0.1, "temperature": 1.0},
    {"top_k": 5},
    {"seed": -1, "temperature": 1.0},
    {"stop": ""},
    {"stop": ["a", ""]},
    {"stop": [3]},
    {"stop": 3},
    {"stop": b"a"},
    {"stop": "\udcff"},
]


@pytest.mark.parametrize("options", BAD_OPTIONS)
def test_bad_options_are_refused_before_anything_runs(options: dict[str, Any]) -> None:
    engine = scripted_engine(PIECES)
    name = next(iter(options))
    for call in (engine.generate, engine.stream):
        with pytest.raises(jf.OptionError) as caught:
            call("a", jf.choice(["a"]), **options)
        assert caught.value.option == name
    assert engine.model.calls == []


def test_unknown_options_and_other_things_than_grammars_are_errors() -> None:
    engine = scripted_engine(PIECES)
    with pytest.raises(TypeError):
        engine.generate("a", jf.choice(["a"]), max_tokens=3)
    with pytest.raises(jf.OptionError, match=r"jf\.json_schema"):
        engine.generate("a", {"type": "object"})
    with pytest.raises(jf.OptionError, match="max_draft"):
        jf.Engine(engine.model, engine.tokenizer, max_draft=0)


@pytest.mark.parametrize("prompt", ["", "\udcff", [], 3, None, [{"role": "user"}], ["text"]])
def test_bad_prompts_are_refused(prompt: Any) -> None:
    engine = scripted_engine(PIECES)
    with pytest.raises(jf.PromptError):
        engine.generate(prompt, jf.choice(["a"]))
    with pytest.raises(jf.PromptError, match="no chat template"):
        engine.generate([{"role": "user", "content": "a"}], jf.choice(["a"]))
    assert engine.model.calls == []


def test_a_prompt_must_leave_room_and_the_output_stays_inside() -> None:
    engine = scripted_engine(max_length=10)
    with pytest.raises(jf.PromptError, match="10 tokens and the model's context 10"):
        engine.generate("a" * 10, jf.regex("b+"))
    result = engine.generate("a" * 7, jf.regex("b{20}"))
    assert (len(result.token_ids), result.finish_reason) == (3, "length")


def test_chat_messages_go_through_the_template() -> None:
    engine = scripted_engine(PIECES)
    engine.tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}>"
    engine.generate([{"role": "user", "content": "hi"}], jf.choice(["a", "b"]))
    assert engine.model.calls[0][0] == engine.tokenizer("<user>hi>")["input_ids"]


def test_messages_that_the_template_refuses_are_a_bad_prompt() -> None:
    engine = scripted_engine(PIECES)
    engine.tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(jf.PromptError, match="no system role"):
        engine.generate([{"role": "system", "content": "hi"}], jf.choice(["a"]))
    assert engine.model.calls == []


class Person(pydantic.BaseModel):
    ab: bool


def test_parsed_is_a_value_or_an_object() -> None:
    engine = scripted_engine(PIECES)
    assert isinstance(engine.generate("a", jf.json_schema(Person)).parsed, Person)
    assert set(engine.generate("a", jf.json_schema(RECORD)).parsed) == {"ab"}
    assert engine.generate("a", jf.choice(["ab"])).parsed is None


def test_a_record_is_json_and_stats_are_readable() -> None:
    engine = scripted_engine(PIECES)
    result = engine.generate("a", jf.json_schema(RECORD), logprobs=True)
    record = json.loads(json.dumps(result.record()))
    assert record["parsed"] == result.parsed
    assert record["stats"]["num_output_tokens"] == len(record["token_ids"]) == len(record["logprobs"])
    assert set(record["provenance"]) <= {"sampled", "forced", "drafted"}
    text = str(result.stats)
    assert "forward passes" in text
    assert f"{result.stats.num_output_tokens}" in text
    assert result.stats.table().row_count == len(text.splitlines()) - 1
    with pytest.raises(pydantic.ValidationError):
        result.text = "other"


def test_case_28_a_hash_in_a_string_ends_nothing() -> None:
    tokenizer = toy_tokenizer(PIECES)
    engine = scripted_engine(PIECES, script=favouring('"a#b"', tokenizer))
    assert engine.generate("a", jf.json_schema({"type": "string"})).parsed == "a#b"
