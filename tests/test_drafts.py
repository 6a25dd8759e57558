"""Sources of drafts: law 7 for every source and combination, what each of them knows, and accounts that add up."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers import ALONE, LegalGuesses, favouring, random_script, scripted_engine, set_drafters, start, step
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import grammars

import jumpforward as jf
from jumpforward.decoding.costs import FixedCosts
from jumpforward.decoding.sampling import SamplingOptions
from jumpforward.engine.drafting import DEFAULT_DRAFTERS
from jumpforward.matching.pushdown import PushdownMatcher
from jumpforward.stats import Provenance

PIECES = ['{"', '":', ' "', '",', "ab", "abc", "bc", "aa", "true", "霍", "name", ": ", ", ", "10", '"a', "cd"]
PROMPTS = ["a", "ab abcd, 10 aa: 霍", '{"ab": true, "name": "cd"}']
SAMPLING: list[dict[str, Any]] = [{}, {"temperature": 1.0, "seed": 1}, {"temperature": 0.7, "top_k": 5, "seed": 2}]
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "ab": {"type": "boolean"}, "n": {"enum": [1, 10]}},
    "required": ["name", "ab", "n"],
}


def combination(names: tuple[str, ...], row_s: float, automata: bool) -> jf.Engine:
    costs = FixedCosts(pass_s=1.0, row_s=row_s)
    return scripted_engine(PIECES, drafters=names, memory="grammar", pass_costs=costs, automata=automata)


shared_combination = cache(combination)  # what it remembers of other examples is stale in this one


FLEXIBLE = jf.json_schema(RECORD, whitespace="flexible", max_whitespace=3)


@given(
    grammar=st.one_of(grammars, st.just(FLEXIBLE)),
    prompt=st.sampled_from(PROMPTS),
    sampling=st.sampled_from(SAMPLING),
    names=st.sampled_from([*((name,) for name in DEFAULT_DRAFTERS), DEFAULT_DRAFTERS, DEFAULT_DRAFTERS[::-1]]),
    row_s=st.sampled_from([0.0, 0.05, 0.5]),
    seed=st.integers(0, 3),
    automata=st.booleans(),
    policy=st.sampled_from(["exact", "canonical"]),
)
@settings(max_examples=150)
def test_law_7_for_every_source_and_combination(
    grammar: jf.Grammar,
    prompt: str,
    sampling: dict[str, Any],
    names: tuple[str, ...],
    row_s: float,
    seed: int,
    automata: bool,
    policy: str,
) -> None:
    engine = shared_combination(names, row_s, automata)
    engine.model.script = random_script(len(engine.tokenizer), seed)
    undrafted = "masked" if policy == "exact" else "canonical"
    options = {"max_new_tokens": 24, **sampling}
    usual = engine._drafting.drafters
    set_drafters(engine, *(() if policy == "canonical" else usual))
    plain = engine.generate(prompt, grammar, policy=undrafted, **options)
    set_drafters(engine, *usual)
    for _ in range(2):  # behind its own memory too
        drafted = engine.generate(prompt, grammar, policy=policy, **options)
        assert drafted.token_ids == plain.token_ids
        assert drafted.complete == plain.complete
        check_sources(drafted)


def check_sources(result: jf.Result) -> None:
    """Law 9 for sources."""
    stats, sources = result.stats, result.stats.sources.values()
    assert stats.num_proposed == sum(source.num_proposed for source in sources)
    assert stats.num_rejected == sum(source.num_rejected for source in sources)
    assert stats.num_drafted == sum(source.num_accepted for source in sources)
    assert all(source.num_accepted + source.num_rejected == source.num_proposed for source in sources)
    drafted_by = [source for source in result.sources if source is not None]
    assert {name: drafted_by.count(name) for name in drafted_by} == {
        name: source.num_accepted for name, source in stats.sources.items() if source.num_accepted
    }
    for source, provenance in zip(result.sources, result.provenance, strict=True):
        assert (source is not None) == (provenance is Provenance.DRAFTED)
    # Every pass makes a token of its own, but for those of a prompt that is fed in pieces.
    num_saved = sum(source.num_passes_saved for source in sources)
    assert stats.num_sampled + stats.num_drafted - num_saved == stats.num_forward_passes
    assert result.record()["sources"] == result.sources


@given(grammar=grammars, seed=st.integers(0, 3), garbage=st.lists(st.integers(-9, 300), max_size=60))
def test_law_7_for_a_memory_of_garbage(grammar: jf.Grammar, seed: int, garbage: list[int]) -> None:
    engine = scripted_engine(PIECES, seed=seed, memory="grammar")
    masked = engine.generate("a", grammar, policy="masked", max_new_tokens=24)
    source = next(source for source in engine._drafting.drafters if source.name == "memory")
    for end in range(len(masked.token_ids)):  # wrong tokens behind right contexts
        engine.memory.add(source._table(grammar), [*masked.token_ids[:end], *garbage], 0)
    assert engine.generate("a", grammar, max_new_tokens=24).token_ids == masked.token_ids


@given(
    chosen=st.lists(st.tuples(grammars, st.sampled_from(PROMPTS), st.sampled_from(SAMPLING)), min_size=2, max_size=5),
    seed=st.integers(0, 3),
)
@settings(max_examples=40)
def test_law_7_in_batches(chosen: list[tuple[jf.Grammar, str, dict[str, Any]]], seed: int) -> None:
    engine = scripted_engine(PIECES, seed=seed, memory="process", pass_costs=FixedCosts(1.0, 0.05))
    requests = [
        {"prompt": prompt, "grammar": grammar, "max_new_tokens": 16, **options} for grammar, prompt, options in chosen
    ]
    expected = [engine.generate(**request, policy="masked").token_ids for request in requests]
    for batch_size in (1, 3):
        results = engine.generate_batch(requests, batch_size=batch_size)
        assert [result.token_ids for result in results] == expected


# --- what each source knows --------------------------------------------------------------------------------------


def test_memory_drafts_what_an_earlier_output_said() -> None:
    grammar = jf.regex("[a-d]{20}")
    engine = scripted_engine(memory="grammar", drafters=["memory"])
    engine.model.script = favouring("abdcbacddbcadcbbadca", engine.tokenizer)
    first, second = (engine.generate("a", grammar) for _ in range(2))
    assert second.token_ids == first.token_ids
    assert first.stats.num_forward_passes > 15
    assert second.stats.num_forward_passes == 2  # after `b` the first guess is a wrong one
    assert second.stats.sources["memory"].num_accepted == 19
    other = engine.generate("a", jf.regex("[a-d]{1,20}"))
    assert other.stats.num_forward_passes > 15


@pytest.mark.parametrize("scope", ["off", "request"])
def test_narrow_scopes_leave_no_trace(scope: Any) -> None:
    engine = scripted_engine(PIECES, seed=3, memory=scope, pass_costs=FixedCosts(1.0, 0.05))
    grammar = jf.json_schema(RECORD)
    first = engine.generate(PROMPTS[2], grammar)
    set_aside = engine.generate(PROMPTS[1], grammar), engine.generate(PROMPTS[2], grammar, temperature=1.0, seed=3)
    again = engine.generate(PROMPTS[2], grammar)
    assert set_aside[0].token_ids
    assert engine.memory is None
    assert (again.provenance, again.sources) == (first.provenance, first.sources)
    assert again.stats.chunk_lengths == first.stats.chunk_lengths


def test_the_process_shares_over_engines_and_grammars() -> None:
    pieces = ["shared by a test of its own"]  # a vocabulary that no other test has
    first, second = (scripted_engine(pieces, memory="process", drafters=["memory"]) for _ in range(2))
    for engine in (first, second):
        engine.model.script = favouring("abdcbacddbcadcbbadca", engine.tokenizer)
    assert first.memory is second.memory
    first.generate("a", jf.regex("[a-d]{20}"))
    assert second.generate("a", jf.regex("[a-d]+")).stats.num_forward_passes <= 3


def test_lookup_goes_on_with_a_word_of_the_prompt() -> None:
    text = "Daniel Weber"
    engine = scripted_engine(["el", "iel", " W", " We", "be", "ber"], drafters=["lookup"])
    prompt = "I met Daniel Weber there"
    engine.model.script = favouring(text, engine.tokenizer, num_prompt=len(engine.tokenizer(prompt)["input_ids"]))
    result = engine.generate(prompt, jf.regex("[A-Za-z ]{12}"))
    assert result.text == text
    drafted = [
        engine.vocabulary.token_bytes[token] for token, by in zip(result.token_ids, result.sources, strict=True) if by
    ]
    assert drafted == [b"a", b"n", b"iel", b" We", b"ber"]
    assert result.stats.num_forward_passes == 2


@pytest.mark.parametrize(
    ("prompt", "pattern", "text", "expected"),
    [
        pytest.param("a yoga mat", "[A-Za-z ]{4}", "Yoga", "oga", id="in another case"),
        pytest.param("a yoga mat", "[A-Za-z ]{8}", "Yoga Mat", "oga Mat", id="words in another case"),
        pytest.param("a YOGA MAT", "[A-Za-z ]{8}", "Yoga Mat", "ga Mat", id="capitals in small letters"),
        pytest.param("yet Yoga", "[A-Za-z ]{4}", "Yoga", "oga", id="in its own case first"),
        pytest.param("Ann met Ada, and Bo", "[A-Za-z ]{6}", "Bo Ada", "oda", id="the last place"),
        pytest.param("order K4-009 of 2024-05-06 is 37 bags", "=[0-9]{2}", "=37", "37", id="a number"),
        pytest.param("the weight is 3.25", "=[0-9.]{4}", "=3.25", "3.25", id="a number with a fraction"),
        pytest.param("room 37", "=[0-9a-z]{2}", "=37", "7", id="no number where a letter may stand"),
    ],
)
def test_lookup_drafts(prompt: str, pattern: str, text: str, expected: str) -> None:
    engine = scripted_engine(drafters=["lookup"], pass_costs=FixedCosts(1.0, 0.0))
    engine.model.script = favouring(text, engine.tokenizer, num_prompt=len(engine.tokenizer(prompt)["input_ids"]))
    result = engine.generate(prompt, jf.regex(pattern))
    drafted = [token for token, by in zip(result.token_ids, result.sources, strict=True) if by]
    assert (result.text, engine.vocabulary.text_bytes(drafted).decode()) == (text, expected)


def _share_right(engine: jf.Engine, kind: str) -> float:
    """Return how often what memory bid of a kind was right."""
    records = engine._drafting.paces.of(SamplingOptions())._records
    judged = [each for key, each in records.items() if key[:2] == ("memory", kind)]
    return sum(each.num_right for each in judged) / sum(each.num_tried for each in judged)


def test_memory_of_other_outputs_is_judged_apart_within_free_text() -> None:
    grammar = jf.json_schema(
        {"type": "object", "properties": {"k": {"type": "string", "maxLength": 3}}, "required": ["k"]}
    )
    engine = scripted_engine(['{"', '": "'], memory="grammar", drafters=["memory"], pass_costs=FixedCosts(1.0, 0.05))
    for text in ('{"k": "abc"}', '{"k": "xbc"}', '{"k": "ybc"}'):
        engine.model.script = favouring(text, engine.tokenizer)
        assert engine.generate("a", grammar).text == text
    assert _share_right(engine, "others") == 1
    assert _share_right(engine, "others, in free text") < 0.8  # the first letter of each value is another one


def test_values_of_the_request_itself_are_bid_beside_those_of_others() -> None:
    keys = ("k", "l", "m", "n", "o", "p")
    string = {"type": "string", "minLength": 1, "maxLength": 3}
    grammar = jf.json_schema({"type": "object", "properties": dict.fromkeys(keys, string), "required": list(keys)})
    engine = scripted_engine(['": "', '", "'], memory="grammar", drafters=["memory"], pass_costs=FixedCosts(1.0, 0.05))
    for value in ("ab", "cd", "ef", "gh"):
        text = "{" + ", ".join(f'"{key}": "{value}"' for key in keys) + "}"
        engine.model.script = favouring(text, engine.tokenizer)
        result = engine.generate("x", grammar)
        assert result.text == text
    # Others wrote other values behind every key; this request has written its own before.
    firsts = [source for token, source in zip(result.token_ids, result.sources, strict=True) if token == ord("g")]
    assert firsts[2:] == ["memory"] * 4
    assert _share_right(engine, "output") > 0.9 > 0.5 > _share_right(engine, "others, in free text")


def test_copies_are_judged_apart_where_a_clause_of_the_prompt_ends() -> None:
    names = ("Ann Lee", "Bob Ray", "Cid Fox", "Dan Kay", "Eve Low", "Flo May")
    engine = scripted_engine(memory="grammar", drafters=["memory"], pass_costs=FixedCosts(1.0, 0.05))
    text = "".join(f"={name};" for name in names)
    prompt = ", ".join(names)
    engine.model.script = favouring(text, engine.tokenizer, num_prompt=len(engine.tokenizer(prompt)["input_ids"]))
    assert engine.generate(prompt, jf.lark('start: ("=" /[A-Za-z ,]+/ ";")+')).text == text
    assert _share_right(engine, "prompt") > 0.8
    assert _share_right(engine, "prompt, end of a clause") < 0.2


def test_guesses_are_what_the_model_said_in_rejected_rows() -> None:
    # The model writes `{` and `"` for the forced `{"`, and would go on with `b` either way.
    engine = scripted_engine(['{"'], drafters=["guesses", "forced"])
    encode = engine.tokenizer.convert_tokens_to_ids
    end = engine.tokenizer.eos_token_id
    after = {"{": '"', '"': "b", '{"': "b", "b": "c", "c": "}"}

    def script(ids: Any) -> Any:
        logits = np.zeros(len(engine.tokenizer), dtype=np.float32)
        last = engine.tokenizer.convert_ids_to_tokens(ids[-1])
        logits[encode(after.get(last, "{")) if last != "}" else end] = 9
        return logits

    engine.model.script = script
    result = engine.generate("a", jf.regex(r'\{"[bx][cy]\}'))
    assert result.text == '{"bc}'
    assert result.sources[2] == "guesses"
    assert result.stats.sources["guesses"].num_accepted == 1


@pytest.mark.parametrize("seed", range(8))
def test_guesses_are_drawn_again_for_their_new_place(seed: int) -> None:
    # The same as above, but what follows is drawn from eight letters: in other tokens it has another random number.
    engine = scripted_engine(['{"'], drafters=["guesses", "forced"])
    encode = engine.tokenizer.convert_tokens_to_ids
    letters = [encode(letter) for letter in "abcdefgh"]

    def script(ids: Any) -> Any:
        logits = np.full(len(engine.tokenizer), -30.0, dtype=np.float32)
        last = engine.tokenizer.convert_ids_to_tokens(ids[-1])
        if last in ("{", '"', '{"'):
            logits[encode('"') if last == "{" else letters] = 0.0
        else:
            logits[[encode("{"), encode("}")]] = 0.0
        return logits

    engine.model.script = script
    grammar, draws = jf.regex(r'\{"[a-h]\}'), {"temperature": 1.0, "seed": seed}
    result = engine.generate("a", grammar, **draws)
    assert result.token_ids == engine.generate("a", grammar, policy="masked", **draws).token_ids
    assert result.token_ids[:2] == [encode("{"), encode('"')]
    assert result.sources[2] == "guesses"
    assert result.stats.sources["guesses"].num_rejected == 0


# --- the user's own ----------------------------------------------------------------------------------------------


class Favourite(jf.Drafter):
    """What a user might write."""

    name = "favourite"

    def __init__(self, token: int) -> None:
        self.token = token
        self.num_accepted = 0

    def propose(self, view: jf.DraftView) -> jf.Bid | None:
        return jf.Bid([self.token], 0.9) if view.allows(self.token) else None

    def learn(self, outcome: Any) -> None:
        self.num_accepted += outcome.num_accepted


class Rivals(jf.Drafter):
    """Knows two things, and is surer of the wrong one."""

    name = "rivals"

    def propose(self, view: jf.DraftView) -> list[jf.Bid]:
        wrong, right = (view.prompt_ids[at] for at in (0, 1))
        return [jf.Bid([wrong], 0.6, "wrong"), jf.Bid([right], 0.5, "right"), jf.Bid([], 0.9)]


def test_of_bids_that_rival_each_other_the_kind_wins_that_has_been_right() -> None:
    engine = scripted_engine(drafters=[Rivals()], pass_costs=FixedCosts(1.0, 0.01))
    engine.model.script = favouring("b" * 60, engine.tokenizer, num_prompt=2)
    result = engine.generate("ab", jf.regex("[ab]{60}"))
    assert result.text == "b" * 60
    rivals = result.stats.sources["rivals"]
    assert rivals.num_proposed - rivals.num_accepted <= 40  # at first, and what was drafted behind it
    assert result.stats.num_forward_passes < 8


def test_a_source_of_the_users_own() -> None:
    engine = scripted_engine()
    engine.model.script = favouring("aaaaaaaab", engine.tokenizer)
    own = Favourite(engine.tokenizer.convert_tokens_to_ids("a"))
    set_drafters(engine, own)
    result = engine.generate("a", jf.regex("a*b"))
    assert result.stats.num_forward_passes == 1
    assert result.sources.count("favourite") == 8
    assert own.num_accepted == 9  # the end too, which was certain


BAD_OPTIONS: list[dict[str, Any]] = [
    {"memory": "everything"},
    {"memory_bytes": -1},
    {"memory_bytes": True},
    {"drafters": ["no such source"]},
    {"drafters": ["forced", "forced"]},
    {"drafters": [3]},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=str)
def test_options_that_mean_nothing(options: dict[str, Any]) -> None:
    with pytest.raises(jf.OptionError, match=next(iter(options))):
        scripted_engine(**options)


class FailsToLearn(LegalGuesses):
    name = "fails"

    def learn(self, outcome: Any) -> None:
        if len(outcome.output_ids) >= 4:
            raise LookupError


def test_law_11_a_source_that_fails_to_learn_ends_its_request_behind_whole_tokens() -> None:
    grammar = jf.regex("[ab]{12}")
    engine = scripted_engine(PIECES)
    masked = start(engine, grammar, "masked")
    while not masked.is_finished:
        step(engine, masked)
    set_drafters(engine, FailsToLearn(0, 2, engine.vocabulary.width))
    run = start(engine, grammar, "exact")

    def to_the_end() -> None:
        while not run.is_finished:
            step(engine, run)

    with pytest.raises(LookupError):
        to_the_end()
    made = run.sequence.output_ids
    assert made == masked.sequence.output_ids[: len(made)]
    assert run.row.length == len(run.sequence) - 1
    run.matcher.rollback(len(made))
    with pytest.raises(ValueError, match="cannot undo"):
        run.matcher.rollback(1)


def test_defaults_are_what_an_engine_begins_with() -> None:
    engine = scripted_engine(**ALONE | {"memory": "request"})
    assert tuple(source.name for source in engine._drafting.drafters) == DEFAULT_DRAFTERS


@pytest.mark.parametrize(
    "text",
    [
        '{"ab": true, "n": 10}',
        '{"ab":true,"n":10}',
        '{\n  "ab": true,\n  "n": 10\n}',
        '{\n    "ab": true,\n    "n": 10\n}',
    ],
)
def test_formats_draft_the_layout_that_an_output_keeps_to(text: str) -> None:
    schema = {
        "type": "object",
        "properties": {"ab": {"type": "boolean"}, "n": {"enum": [1, 10]}},
        "required": ["ab", "n"],
    }
    engine = scripted_engine(drafters=["formats"])
    engine.model.script = favouring(text, engine.tokenizer)
    result = engine.generate("a", jf.json_schema(schema, whitespace="flexible"))
    assert result.text == text
    assert result.stats.num_forward_passes <= 7
    assert result.stats.sources["formats"].num_accepted >= 7
    fixed = engine.generate("a", jf.json_schema(schema))
    assert "formats" not in fixed.stats.sources


def test_formats_fall_silent_where_an_output_keeps_to_none() -> None:
    engine = scripted_engine(drafters=["formats"])
    text = '{ "ab" :true}'
    engine.model.script = favouring(text, engine.tokenizer)
    schema = {"type": "object", "properties": {"ab": {"type": "boolean"}}, "required": ["ab"]}
    result = engine.generate("a", jf.json_schema(schema, whitespace="flexible"))
    assert result.text == text
    assert result.stats.sources["formats"].num_accepted == 0


def test_a_row_that_decides_nothing_is_filled_behind_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    engine = scripted_engine()
    for owner, name in ((engine._runner, "forward"), (PushdownMatcher, "fill_bitmask")):
        monkeypatch.setattr(owner, name, noting(events, name, getattr(owner, name)))
    engine.generate("a", jf.ebnf('root ::= "<" [a-z] [a-z] [a-z] ">"'), policy="masked")
    # One token may be the only one, or none may be legal, at the brackets and at the end.
    expected = [True, False, False, False, True, True]
    assert [events[step] == "fill_bitmask" for step in range(0, len(events), 2)] == expected
    assert sorted(events) == ["fill_bitmask"] * 6 + ["forward"] * 6


def noting(events: list[str], name: str, call: Any) -> Any:
    def noted(*arguments: Any, **options: Any) -> Any:
        events.append(name)
        return call(*arguments, **options)

    return noted
