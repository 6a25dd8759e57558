"""What the user writes becomes a grammar, or a clear error."""

from __future__ import annotations

import json
import warnings
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, ValidationError
from strategies import any_text, languages, regexes, schemas, words

import jumpforward as jf
from jumpforward.grammar.spec import json_schema_in_any_order


def forced(grammar, done=b""):
    walker = grammar.walker()
    assert walker.consume(done)
    return walker.forced_bytes().decode(errors="surrogateescape")


def record(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


# -- every kind --


@pytest.mark.parametrize(
    ("grammar", "kind", "good", "bad"),
    [
        (lambda: jf.json_schema({"type": "integer"}), "json_schema", "12", "1.5"),
        (lambda: jf.regex("a+b"), "regex", "aab", "aa"),
        (lambda: jf.ebnf('root ::= "(" root ")" | "x"'), "ebnf", "((x))", "((x)"),
        (lambda: jf.ebnf('top ::= "x"', root="top"), "ebnf", "x", ""),
        (lambda: jf.lark('start: "a" item+\nitem: "," /[0-9]/'), "lark", "a,1,2", "a"),
        (lambda: jf.choice(["yes", "no"]), "choice", "no", "n"),
        (lambda: jf.choice("yes"), "choice", "yes", "y"),
        (lambda: jf.structural_tag(TAG), "structural_tag", "hi <n>3</n>", "hi <n>x</n>"),
        (lambda: jf.structural_tag(json.dumps(TAG)), "structural_tag", "hi <n>3</n>", "hi <n>3</m>"),
    ],
)
def test_every_kind_of_grammar(grammar, kind, good, bad):
    made = grammar()
    assert made.kind == kind
    assert made.source
    assert made.accepts(good.encode())
    assert not made.accepts(bad.encode())


TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<n"],
        "tags": [
            {
                "begin": "<n>",
                "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
                "end": "</n>",
            }
        ],
    },
}


@given(languages)
def test_a_choice_is_exactly_its_strings(language):
    grammar = jf.choice(language)
    assert all(grammar.accepts(word.encode()) for word in language)
    for word in language:
        for other in (word + "a", word[:-1], word + word):
            assert grammar.accepts(other.encode()) == (other in language)


@given(st.lists(any_text, min_size=1, max_size=3))
def test_a_choice_spells_any_text(members):
    grammar = jf.choice(members)
    assert all(grammar.accepts(member.encode()) for member in members)


@given(regexes)
def test_a_regex_is_matched_from_end_to_end(drawn):
    pattern, language = drawn
    grammar = jf.regex(pattern)
    for word in sorted(language)[:20]:
        assert grammar.accepts(word.encode())
        for other in (word + "a", "b" + word, word[1:]):
            assert grammar.accepts(other.encode()) == (other in language)


@given(schemas, st.sampled_from(["fixed", "compact"]))
def test_what_a_schema_forces_and_json_dumps_agree(schema, whitespace):
    separators = (", ", ": ") if whitespace == "fixed" else (",", ":")
    grammar = jf.json_schema(schema, whitespace=whitespace)
    document = example(schema)
    Draft202012Validator(schema).validate(document)
    assert grammar.accepts(json.dumps(document, ensure_ascii=False, separators=separators).encode())


def example(schema):
    """One document of a schema of the strategy, its levels built from the inside out."""
    order, done = [schema], {}
    for part in order:  # grows while it is walked
        order += part.get("properties", {}).values()
        order += [part["items"]] if "items" in part else []
    for part in reversed(order):
        done[id(part)] = value(part, done)
    return done[id(schema)]


def value(part, done):
    if "const" in part:
        return part["const"]
    if "enum" in part:
        return part["enum"][-1]
    if part["type"] == "object":
        return {key: done[id(inner)] for key, inner in part["properties"].items()}
    if part["type"] == "array":
        return [done[id(part["items"])]] * 2
    return {"boolean": True, "null": None, "string": "霍", "integer": 101}[part["type"]]


# -- schemas --


@pytest.mark.parametrize("form", [dict, json.dumps, lambda schema: json.dumps(schema, ensure_ascii=False)])
def test_case_23_a_schema_as_dictionary_or_text_in_any_spelling(form):
    grammar = jf.json_schema(form({"enum": ["在线 😀 é"]}))
    assert forced(grammar) == '"在线 😀 é"'


@pytest.mark.parametrize("key", ['k\x01"q\\', "size (cm)", "a/b", "\u2028\x7f", "#", "😀", " "])
def test_cases_24_and_27_any_key_is_forced_as_json(key):
    text = forced(jf.json_schema(record(**{key: {"type": "integer"}})))
    assert text.endswith('": ')
    assert json.loads(text + "1}") == {key: 1}


@given(words | any_text)
def test_cases_24_and_25_any_constant_is_forced_as_json(constant):
    assert json.loads(forced(jf.json_schema({"const": constant}))) == constant


def test_case_25_a_slash_is_not_escaped():
    assert forced(jf.json_schema({"const": "a/b"})) == '"a/b"'


def test_case_27_literal_parentheses_in_a_regex():
    assert forced(jf.regex(r'"size \(cm\)": [0-9]')) == '"size (cm)": '


def test_case_28_a_hash_is_an_ordinary_character():
    grammar = jf.json_schema(record(a={"type": "string"}))
    assert grammar.accepts(b'{"a": "# no comment"}')


@pytest.mark.parametrize(("values", "start"), [(["alpha", "alphabet"], '"alpha'), ([1, 12, "1"], ""), ([1, 12], "1")])
def test_case_2_forcing_stops_where_one_value_begins_another(values, start):
    grammar = jf.json_schema({"enum": values})
    assert forced(grammar) == start
    assert all(grammar.accepts(json.dumps(value).encode()) for value in values)


def test_case_3_a_recursive_schema_forces_every_level_and_stops():
    schema = record(v={"const": 1}, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]})
    grammar = jf.json_schema(schema)
    assert forced(grammar) == '{"v": 1, "next": '
    depth = 3000  # more than Python's own recursion limit
    done = b'{"v": 1, "next": ' * depth
    assert forced(grammar, done) == ""
    assert forced(grammar, done + b"{") == '"v": 1, "next": '
    assert grammar.accepts(done + b"null" + b"}" * depth)


def test_case_6_whitespace_decides_how_much_is_forced():
    schema = record(name={"const": "Ann"}, age={"const": 31})
    assert forced(jf.json_schema(schema)) == '{"name": "Ann", "age": 31}'
    assert forced(jf.json_schema(schema, whitespace="compact")) == '{"name":"Ann","age":31}'
    assert forced(jf.json_schema(schema, whitespace="flexible")) == "{"


def test_case_7_flexible_whitespace_has_a_cap():
    schema = record(a={"const": 1})
    assert jf.json_schema(schema, whitespace="flexible", max_whitespace=2).accepts(b'{  "a"\n :1 }')
    assert not jf.json_schema(schema, whitespace="flexible", max_whitespace=2).accepts(b'{   "a": 1}')
    assert not jf.json_schema(schema, whitespace="flexible").accepts(b'{"a":' + b" " * 33 + b"1}")
    assert jf.json_schema(schema, whitespace="flexible", max_whitespace=None).accepts(b'{"a":' + b" " * 200 + b"1}")


def test_strict_closes_objects_and_not_strict_leaves_them_open():
    schema = record(a={"const": 1})
    assert not jf.json_schema(schema).accepts(b'{"a": 1, "b": 2}')
    assert jf.json_schema(schema, strict=False).accepts(b'{"a": 1, "b": 2}')


@given(st.permutations(["a", "b", "c"]))
def test_any_order_takes_keys_in_every_order(keys):
    schema = {"type": "object", "properties": {key: {"type": "integer"} for key in "abc"}, "required": ["a", "b", "c"]}
    document = json.dumps(dict.fromkeys(keys, 1)).encode()
    wide = json_schema_in_any_order(schema, whitespace="fixed", strict=True)
    assert wide.accepts(document)
    assert not wide.accepts(document.replace(b"a", b"z"))
    assert jf.json_schema(schema).accepts(document) == (keys == ["a", "b", "c"])


def test_true_is_any_document():
    assert jf.json_schema(True).accepts(b'{"a": [1, null]}')
    assert jf.json_schema("true").accepts(b"1.5")


@pytest.mark.parametrize("number", [12345678901234567890123, 2**63 + 1, [1, {"a": 10**30 + 1}]])
def test_case_44_a_number_that_would_become_another_is_refused(number):
    with pytest.raises(jf.GrammarError, match=r"\(at /properties/n\)"):
        jf.json_schema(record(n={"const": number}))
    with pytest.raises(jf.GrammarError, match="another value"):
        jf.json_schema({"enum": ["x", number]})


@pytest.mark.parametrize("number", [1.0, -0.0, 0.1, 1e-7, 1e300, 2**53 + 1, -(2**63), 123456.789])
def test_case_44_other_numbers_keep_their_value(number):
    assert json.loads(forced(jf.json_schema({"const": number}))) == number


@pytest.mark.parametrize(
    ("schema", "names", "place"),
    [
        ({"anyOf": [{"type": "integer"}], **record(a={"type": "string"})}, "properties", "/"),
        (record(a={"$ref": "#/$defs/s", "maxLength": 3}) | {"$defs": {"s": {"type": "string"}}}, "maxLength",
         "/properties/a"),
    ],
)  # fmt: skip
def test_case_45_ignored_siblings_are_warned_of_where_the_user_called(schema, names, place):
    with pytest.warns(jf.GrammarWarning, match=rf"{names}.* \(at {place}\)") as caught:
        jf.json_schema(schema)
    assert caught[0].filename == __file__


def test_case_45_a_plain_schema_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jf.json_schema(record(a={"enum": ["x"], "type": "string"}, b={"anyOf": [{"type": "null"}, {"const": 1}]}))


def test_case_46_a_pattern_is_matched_from_end_to_end():
    grammar = jf.json_schema({"type": "string", "pattern": "ab"})
    assert forced(grammar) == '"ab"'
    assert not grammar.accepts(b'"xaby"')


# -- bad input --


@pytest.mark.parametrize(
    ("make", "kind", "reason"),
    [
        (lambda: jf.json_schema("{"), "json_schema", "not JSON.*line 1"),
        (lambda: jf.json_schema("[" * 100_000), "json_schema", "nested too deeply"),
        (lambda: jf.json_schema("3"), "json_schema", "expected a JSON object"),
        (lambda: jf.json_schema([1]), "json_schema", "expected a JSON object.*list"),
        (lambda: jf.json_schema(None), "json_schema", "expected a JSON object.*NoneType"),
        (lambda: jf.json_schema({"default": {1, 2}}), "json_schema", "cannot be written as JSON"),
        (lambda: jf.json_schema({"const": float("nan")}), "json_schema", "cannot be written as JSON"),
        (lambda: jf.json_schema(False), "json_schema", "cannot accept any value"),
        (lambda: jf.json_schema({"enum": []}), "json_schema", "must not be empty"),
        (lambda: jf.json_schema({"$ref": "#/$defs/none"}), "json_schema", "defs"),
        (lambda: jf.json_schema({"type": "strin"}), "json_schema", 'type "strin"$'),
        (lambda: jf.regex("a("), "regex", "position 3"),
        (lambda: jf.regex("[a"), "regex", "Unclosed"),
        (lambda: jf.regex("(?=a)b"), "regex", "Lookahead"),
        (lambda: jf.regex(r"(a)\1"), "regex", "Backreference"),
        (lambda: jf.regex(r"\bword"), "regex", "Word boundary"),
        (lambda: jf.regex("(?i)a"), "regex", "not supported"),
        (lambda: jf.regex("\ud800"), "regex", "surrogates"),
        (lambda: jf.regex(3), "regex", "`str`"),
        (lambda: jf.ebnf("root ::= ("), "ebnf", "line 1, column"),
        (lambda: jf.ebnf("root ::= missing"), "ebnf", "missing"),
        (lambda: jf.ebnf('root ::= "a"', root="top"), "ebnf", "top"),
        (lambda: jf.ebnf(""), "ebnf", "root"),
        (lambda: jf.lark("start: missing"), "lark", "line 1, column 8"),
        (lambda: jf.lark('other: "a"'), "lark", "no start rule"),
        (lambda: jf.choice([]), "choice", "at least one"),
        (lambda: jf.choice(iter(())), "choice", "at least one"),
        (lambda: jf.choice(["a", 3]), "choice", "expected strings, got 3"),
        (lambda: jf.choice(["\ud800"]), "choice", "surrogates"),
        (lambda: jf.structural_tag("nope"), "structural_tag", "JSON"),
        (lambda: jf.structural_tag({}), "structural_tag", "format"),
        (lambda: jf.structural_tag(3), "structural_tag", "argument"),
    ],
)
def test_bad_input_is_a_grammar_error_with_its_reason(make, kind, reason):
    with pytest.raises(jf.GrammarError, match=reason) as caught:
        make()
    assert caught.value.kind == kind
    assert str(caught.value) == f"{kind}: {caught.value.reason}"
    assert ".cc:" not in caught.value.reason
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (record(a={"type": "strin"}), "/properties/a"),
        (record(a={"type": "string"}, b={"properties": {"c/~": {"type": "strin"}}}), "/properties/b/properties/c~1~0"),
        (record(a={"type": "array", "items": {"type": "string", "pattern": "("}}), "/properties/a/items"),
        ({"anyOf": [{"type": "string"}, {"enum": []}]}, "/anyOf/1"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "strin"}}}, "/\\$defs/x"),
        ({"type": "array", "prefixItems": [{}, {"minLength": 2, "maxLength": 1, "type": "string"}]}, "/prefixItems/1"),
        (record(a=3), "/properties/a"),
        (record(a={"type": "array", "items": {"type": "strin"}}, b={"type": "strin"}), "/properties/a/items"),
        (record(a=record(b=False, c={"type": "strin"})), "/properties/a/properties/c"),
    ],
)  # fmt: skip
def test_the_failing_part_of_a_schema_is_named(schema, place):
    with pytest.raises(jf.GrammarError, match=rf"\(at {place}\)$"):
        jf.json_schema(schema)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"whitespace": "loose"}, "whitespace"),
        ({"max_whitespace": 0}, "max_whitespace"),
        ({"whitespace": "flexible", "max_whitespace": -1}, "max_whitespace"),
    ],
)
def test_an_option_that_means_nothing_is_an_error(options, name):
    with pytest.raises(jf.OptionError, match=name) as caught:
        jf.json_schema({}, **options)
    assert caught.value.option == name
    assert caught.value.value == options[name]


# -- pydantic models and values --


class Person(BaseModel):
    name: str
    kind: Literal["friend"] = Field("friend", alias="type")
    age: int = Field(ge=0, le=130, multiple_of=1)
    even: int = 2

    def model_post_init(self, context):
        if self.even % 2:
            raise ValueError("odd")


def test_a_pydantic_model_is_its_schema_and_parses_to_its_objects():
    grammar = jf.json_schema(Person)
    assert grammar.model is Person
    assert grammar.schema == Person.model_json_schema()
    assert forced(grammar) == '{"name": "'
    text = '{"name": "霍", "type": "friend", "age": 31, "even": 4}'
    assert grammar.accepts(text.encode())
    assert grammar.parse(text) == Person.model_validate_json(text)


def test_parse_raises_where_the_model_has_rules_that_no_schema_states():
    with pytest.raises(ValidationError):
        jf.json_schema(Person).parse('{"name": "x", "age": 31, "even": 3}')


def test_parse_gives_json_values_or_the_text_itself():
    assert jf.json_schema({"type": "array"}).parse("[1, null]") == [1, None]
    assert jf.choice(["12"]).parse("12") == "12"
    assert jf.regex("[0-9]+").parse("12") == "12"


# -- what is written out --


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        (lambda: jf.choice(["é"]), True),
        (lambda: jf.choice(["ab\\xe9\\u00e9"]), False),
        (lambda: jf.choice(["\\霍"]), True),
        (lambda: jf.regex("[a-z]+"), False),
        (lambda: jf.regex("[😀-🙏]"), True),
        (lambda: jf.json_schema({"const": "霍"}), True),
        (lambda: jf.json_schema(record(a={"type": "string"})), False),
    ],
)
def test_literals_outside_ascii_are_noticed(grammar, expected):
    assert grammar().has_multibyte_literals == expected
