"""The figures of a report, against slow and obvious oracles, and against the engine itself."""

from __future__ import annotations

import json
from functools import reduce
from itertools import accumulate, pairwise
from operator import add
from pathlib import Path
from typing import Any

import pytest
from helpers import favouring, tiny_model, tiny_runner
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import languages, pieces

import jumpforward as jf
from jumpforward.report import chunk_cost
from jumpforward.report.changes import CLOSED, FIXED, ORDERED, REQUIRED, with_required
from jumpforward.report.chunk_cost import ChunkClock, ChunkCost, payoff
from jumpforward.report.corpus import Row
from jumpforward.report.counts import POLICY_BOUNDS, ByteCounts, Tally, TokenCounts, quantile
from jumpforward.report.measure import byte_counts, measure, token_counts
from jumpforward.report.overlay import Tokens
from jumpforward.report.passes import run_ends
from jumpforward.report.places import Places
from jumpforward.report.sampled import sampled
from jumpforward.report.settings import Options, Setting
from jumpforward.report.walk import walk
from jumpforward.testing import ScriptedModel, toy_tokenizer

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
                   "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name"],
}  # fmt: skip
SETTINGS = tuple(
    Setting(strictness=strictness, whitespace=spaces)
    for strictness in ("strict", "open")
    for spaces in ("fixed", "flexible")
)
PIECES = ['{"', '":', ', "', "name", "na", "age", '"}', '", "', ' "', "tags", "an"]


def tokens(words: list[str] | None = None) -> Tokens:
    return Tokens(toy_tokenizer(PIECES if words is None else words))


def measured(schema: Any, instances: list[Any], settings: tuple[Setting, ...] = SETTINGS, **options: Any) -> Any:
    row = Row(index=0, id="one", schema_=schema, instances=instances)
    return measure(row, Options(settings=settings, tokenizers=("toy",), **options), {"toy": tokens()})


# -- one document --


@given(languages, pieces, st.data())
def test_counts_of_a_document_are_what_counting_gives(
    language: list[str], words: list[str], data: st.DataObject
) -> None:
    text = data.draw(st.sampled_from(language)).encode()
    found = walk(jf.choice(language), text)
    in_bytes = byte_counts(found)
    runs = [run for run in "".join("f" if forced else " " for forced in found.forced).split(" ") if run]
    assert (in_bytes.num_bytes, in_bytes.num_forced_bytes) == (len(text), sum(map(len, runs)))
    assert in_bytes.num_choices == len(text) - in_bytes.num_forced_bytes == sum(in_bytes.stops.values())
    assert sorted(map(len, runs)) == sorted(
        length for length, count in in_bytes.run_lengths.items() for _ in range(count)
    )

    counts = token_counts(found, laid := tokens(words))
    lengths = laid.lengths(text)
    ends = [0, *accumulate(lengths)]
    spans = list(pairwise(ends))
    inside = [all(found.forced[start:end]) for start, end in spans]
    assert counts.num_tokens == len(lengths)
    assert counts.num_forced_tokens == sum(inside)
    assert counts.num_forced_tokens == sum(length * count for length, count in counts.run_lengths.items())
    assert sum(counts.run_lengths.values()) == len(runs)
    falls = [place for place in range(1, len(text)) if found.forced[place - 1] and not found.forced[place]]
    assert counts.num_straddling == sum(any(start < place < end for place in falls) for start, end in spans)
    rises = [place for place in range(1, len(text)) if found.forced[place] and not found.forced[place - 1]]
    assert counts.num_seams == sum(any(start < place < end for place in rises) for start, end in spans)


@given(languages, pieces, st.data())
def test_predicted_passes_add_up(language: list[str], words: list[str], data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(language)).encode()
    counts = token_counts(walk(jf.choice(language), text), tokens(words))
    assert set(counts.passes) == set(counts.chunks) == set(POLICY_BOUNDS)
    assert {name: sum(lengths.values()) for name, lengths in counts.chunks.items()} == counts.passes
    assert counts.passes["masked"] == counts.num_tokens + 1
    for policy in ("exact", "canonical"):
        fewest, most = counts.passes[f"{policy}_fewest"], counts.passes[f"{policy}_most"]
        assert fewest <= most <= counts.passes["masked"]
    assert counts.passes["canonical_most"] <= counts.passes["exact_most"]
    assert counts.num_spelled_otherwise == 0


def test_run_ends_name_the_end_of_each_run() -> None:
    assert run_ends([]) == []
    assert run_ends([True, True, False, True, False, False]) == [2, 2, 2, 4, 4, 5]


@pytest.mark.parametrize("text", ['{"name": "na"}', '{"name": "x", "age": 12}', '{"name": "", "tags": ["an", "y"]}'])
def test_the_engine_takes_the_passes_that_were_predicted(text: str) -> None:
    """A scripted model that writes the document in its canonical tokens takes as many passes, and no token more."""
    tokenizer = toy_tokenizer(PIECES)
    grammar = jf.json_schema(PERSON)
    counts = token_counts(walk(grammar, text.encode()), Tokens(tokenizer))
    for policy in ("masked", "exact", "canonical"):
        engine = jf.Engine(ScriptedModel(favouring(text, tokenizer), len(tokenizer)), tokenizer)
        result = engine.generate("x", grammar, policy=policy)
        assert result.text == text
        name = policy if policy == "masked" else f"{policy}_fewest"
        assert result.stats.num_forward_passes == counts.passes[name], policy


def test_recursion_is_a_branch_that_comes_again() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"const": "x"}}}, "required": ["a"]}
    for spaces in ("fixed", "flexible"):
        found = walk(jf.json_schema(schema, whitespace=spaces), b'{"a": ["x", "x", "x"]}')
        assert "recursion" in {choice.stop for choice in found.choices}, spaces
    numbers = jf.json_schema({"type": "array", "items": {"type": "integer"}})
    found = walk(numbers, b"[12, 345, 67]")
    digits = [choice.place for choice in found.choices if chr(found.data[choice.place]).isdigit()]
    assert digits
    assert all(choice.stop == "branch" for choice in found.choices if choice.place in digits)


# -- sums --

_small = st.integers(0, 5)
_histograms = st.dictionaries(_small, _small, max_size=3)
_tallies = st.builds(
    Tally,
    num_schemas=_small,
    bytes=st.builds(ByteCounts, num_bytes=_small, live=_histograms),
    tokens=st.dictionaries(
        st.sampled_from("ab"),
        st.builds(TokenCounts, num_tokens=_small, chunks=st.dictionaries(st.just("masked"), _histograms)),
    ),
)


@given(st.lists(_tallies, min_size=1, max_size=4), st.randoms())
def test_tallies_add_up_in_any_order(tallies: list[Tally], draw: Any) -> None:
    total = reduce(add, tallies)
    shuffled = draw.sample(tallies, len(tallies))
    assert json.loads(reduce(add, shuffled).model_dump_json()) == json.loads(total.model_dump_json())
    assert total.bytes.num_bytes == sum(tally.bytes.num_bytes for tally in tallies)
    assert sum(total.bytes.live.values()) == sum(sum(tally.bytes.live.values()) for tally in tallies)
    assert Tally.model_validate_json(total.model_dump_json()) == total


@given(st.lists(st.integers(0, 9), min_size=1), st.sampled_from([0.1, 0.5, 0.9, 1.0]))
def test_quantiles_of_histograms(values: list[int], share: float) -> None:
    counts = {value: values.count(value) for value in values}
    found = quantile(counts, share)
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


# -- one schema --


def test_a_schema_under_all_settings() -> None:
    documents = [{"name": "na", "age": 7}, {"age": 1, "name": "x"}, {"name": "x", "more": 1}, {"age": 1}]
    result = measured(PERSON, documents)
    by_name = {one.setting.name: one for one in result.settings}
    strict, open_ = by_name["strict, fixed"], by_name["open, fixed"]
    assert (strict.tally.num_accepted, strict.tally.num_reordered, strict.tally.num_rejected) == (2, 1, 2)
    assert (open_.tally.num_accepted, open_.tally.num_rejected) == (3, 1)
    notes = {(note.document, note.outcome) for note in strict.notes}
    assert notes == {(1, "reordered"), (2, "rejected"), (3, "rejected")}
    rejected = next(note for note in strict.notes if note.document == 2)
    assert (rejected.place, rejected.came[:4], rejected.num_bytes) == (15, "more", 24)
    texts = [b'{"name": "na", "age": 7}', b'{"name": "x", "age": 1}']
    grammar = jf.json_schema(PERSON)
    assert strict.tally.bytes == reduce(add, (byte_counts(walk(grammar, text)) for text in texts))
    assert strict.tally.tokens["toy"] == reduce(add, (token_counts(walk(grammar, text), tokens()) for text in texts))
    assert "".join(strict.annotated.text) == texts[0].decode()
    assert sum(count for count, _, _ in strict.annotated.segments) == len(strict.annotated.text)


def test_changes_are_walked_again() -> None:
    documents = [{"name": "na", "age": 7}, {"name": "x", "age": 1}, {"name": "y", "age": 2, "more": 1}]
    result = measured(PERSON, documents)
    gains = {one.setting.name: one.tally.gains for one in result.settings}
    assert set(gains["strict, fixed"]) == {ORDERED, REQUIRED}
    assert set(gains["open, flexible"]) == {FIXED, CLOSED, ORDERED, REQUIRED}
    closed = gains["open, fixed"][CLOSED]
    assert (closed.num_documents, closed.num_lost) == (2, 1)
    required = gains["strict, fixed"][REQUIRED]
    changed = PERSON | {"required": ["name", "age"]}
    text = b'{"name": "na", "age": 7}'
    plain, tight = (sum(walk(jf.json_schema(schema), text).forced) for schema in (PERSON, changed))
    assert plain < tight
    assert required.num_forced_after - required.num_forced_before == 2 * (tight - plain)
    fixed = gains["strict, flexible"][FIXED]
    strict = next(one.tally for one in result.settings if one.setting.name == "strict, fixed")
    assert fixed.num_forced_after == strict.bytes.num_forced_bytes
    assert fixed.tokens["toy"].passes_after == strict.tokens["toy"].passes["exact_fewest"]


def test_a_grammar_that_fails_is_listed_and_others_go_on() -> None:
    result = measured({"type": "object", "properties": {"a": {"const": 12345678901234567890123}}}, [{"a": 1}])
    assert all(one.failure and "another value" in one.failure for one in result.settings)
    assert all(one.tally.num_failed == 1 and not one.tally.num_schemas for one in result.settings)
    broken = measure(Row(index=3, id="x", problem="not JSON"), Options(settings=SETTINGS, tokenizers=()), {})
    assert (broken.index, broken.problem, broken.settings) == (3, "not JSON", [])


def test_a_tokenizer_that_changes_a_text_is_not_counted() -> None:
    lossy = Tokens(toy_tokenizer(single_bytes=[byte for byte in range(256) if byte != ord("z")]))
    counts = token_counts(walk(jf.choice(["az", "ay"]), b"az"), lossy)
    assert counts == TokenCounts(num_lossy_documents=1)


# -- sampled documents --

_SAMPLED = [
    PERSON,
    {"type": "string", "pattern": "(é|霍)+"},
    {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
     "required": ["v", "next"]},
    {"type": "array", "items": {"enum": [1, "alpha", "alphabet", None]}, "minItems": 2},
    True,
]  # fmt: skip


@pytest.mark.parametrize("schema", _SAMPLED, ids=range(len(_SAMPLED)))
def test_sampled_documents_are_legal_repeatable_and_short(schema: Any) -> None:
    grammar = jf.json_schema(schema)
    documents = sampled(grammar, 4, "seed")
    assert documents == sampled(grammar, 4, "seed")
    assert documents != sampled(grammar, 4, "other seed")
    assert len(documents) == len(set(documents)) == 4
    for document in documents:
        assert grammar.accepts(document)
        json.loads(document)
        assert len(document) < 600


def test_sampled_documents_are_text() -> None:
    """Ranges of characters let xgrammar's rules through the surrogates, whose bytes are no text."""
    documents = sampled(jf.ebnf(r"root ::= [\uD7F0-\uE00F] [0-9]"), 20, "seed")
    assert len(documents) == 20
    assert all(document.decode() for document in documents)


def test_schemas_without_instances_are_sampled_and_kept_apart() -> None:
    result = measured(PERSON, [], num_sampled=3)
    assert (result.documents, result.num_documents) == ("sampled", 3)
    assert all(one.tally.num_accepted == 3 for one in result.settings)
    none = measured(PERSON, [], num_sampled=0)
    assert none.problem is not None


# -- reading a schema along an instance --


def test_keys_are_put_in_the_schemas_order() -> None:
    schema = {
        "$defs": {"p": {"type": "object", "properties": {"x": {}, "y": {}}}},
        "type": "object",
        "properties": {
            "list": {"type": "array", "items": {"$ref": "#/$defs/p"}},
            "one": {"anyOf": [{"type": "null"}, {"properties": {"k": {"const": 1}, "b": {}}, "required": ["k"]},
                              {"properties": {"b": {}, "k": {}}}]},
        },
    }  # fmt: skip
    value = {"z": 0, "one": {"b": 0, "k": 1}, "list": [{"y": 1, "x": 2}]}
    ordered = Places(schema).ordered(value)
    assert ordered == value
    assert json.dumps(ordered) == '{"list": [{"x": 2, "y": 1}], "one": {"k": 1, "b": 0}, "z": 0}'
    assert list(Places(schema).ordered({"one": {"k": 2, "b": 0}})["one"]) == ["b", "k"]  # the first branch does not fit
    looped = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert Places(looped).ordered({"q": 1}) == {"q": 1}


_KEYWORDS = ["properties", "items", "prefixItems", "required", "type", "anyOf", "allOf", "$ref", "const", "enum",
             "additionalProperties", "patternProperties", "$defs", "a", "b"]  # fmt: skip
_json = st.recursive(
    st.none() | st.integers(0, 2) | st.sampled_from([True, "a", "object", "#", "#/$defs/a", "#/properties/b", "["]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYWORDS), inner, max_size=4),
    max_leaves=12,
)


@given(_json, _json)
@settings(max_examples=300)
def test_reading_along_changes_no_value_and_takes_any_schema(schema: Any, value: Any) -> None:
    assert Places(schema).ordered(value) == value
    changed = with_required(schema, [value])
    assert changed is None or changed != schema


@given(
    st.lists(st.fixed_dictionaries({"a": st.integers()}, optional={"b": st.integers(), "c": st.integers()}), min_size=1)
)
def test_required_are_those_that_all_instances_have(instances: list[dict[str, int]]) -> None:
    item = {"type": "object", "properties": {key: {"type": "integer"} for key in "abc"}, "required": ["a"]}
    changed = with_required({"type": "array", "items": item}, [instances])
    always = [key for key in "bc" if all(key in instance for instance in instances)]
    if not always:
        assert changed is None
    else:
        assert changed is not None
        assert changed["items"]["required"] == ["a", *always]
    assert item["required"] == ["a"]


# -- chunk costs --


def test_costs_lie_on_the_curve() -> None:
    curve = chunk_cost.parsed("1:1,8:1.5,32:3")
    assert [curve.cost(length) for length in (1, 8, 20, 32, 64)] == pytest.approx([1, 1.5, 2.25, 3, 5])
    assert chunk_cost.parsed("1:2").cost(50) == 2


def test_a_curve_is_written_as_it_is_read() -> None:
    curve = chunk_cost.through_medians({1: [0.03, 0.02, 0.04], 8: [0.01], 32: [0.5, 0.7]}, "measured")
    assert curve.points == [(1, 0.03), (8, 0.03), (32, pytest.approx(0.6))]  # a pass never costs less for more tokens
    assert curve.text(1e-3) == "1:30,8:30,32:600"
    assert chunk_cost.parsed(curve.text()).points == curve.points


@pytest.mark.parametrize("kind", ["llama", "mamba"])
def test_a_clock_leaves_the_cache_as_it_was(kind: str) -> None:
    runner = tiny_runner(kind)
    clock = ChunkClock(runner, 5)
    for verified in (True, False):
        assert clock.seconds(3, verified=verified) > 0
        assert clock._cache.lengths == (5,)


@pytest.mark.parametrize("text", ["", "8:1", "1:0", "1:2,1:3", "1:2,4:1", "x", "1:nan", "2:1,1:1"])
def test_other_texts_are_no_curve(text: str) -> None:
    with pytest.raises(jf.OptionError, match="ascending"):
        chunk_cost.parsed(text)


def test_a_curve_is_measured_on_a_model(tmp_path: Path) -> None:
    tokenizer = toy_tokenizer(PIECES)
    tiny_model("llama", len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    curve = chunk_cost.measured(str(tmp_path), "float32")
    lengths, times = zip(*curve.points, strict=True)
    assert lengths == (1, 2, 4, 8, 16, 32, 64)
    assert list(times) == sorted(times)
    assert times[0] > 0
    assert "float32" in curve.source


def test_break_even_is_where_the_times_are_equal() -> None:
    curve = ChunkCost(points=[(1, 1.0), (5, 3.0)], source="given")
    chunks = {"masked": {1: 10}, "exact_fewest": {5: 2}, "exact_most": {1: 5, 3: 5}}
    found = payoff(TokenCounts(chunks=chunks), curve)
    masked, fewest, most = (curve.total(chunks[name]) for name in ("masked", "exact_fewest", "exact_most"))
    share = found.break_even["exact"]
    assert share == pytest.approx(5 / 9, abs=1e-4)
    assert share is not None
    assert share * fewest + (1 - share) * most == pytest.approx(masked, abs=1e-3)
    assert found.speedups["exact_fewest"] == pytest.approx(masked / fewest, abs=1e-4)
    never = payoff(TokenCounts(chunks={"masked": {1: 1}, "exact_fewest": {5: 1}, "exact_most": {5: 2}}), curve)
    assert never.break_even["exact"] is None
