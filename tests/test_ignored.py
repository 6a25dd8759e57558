"""Where a grammar accepts what its schema refuses, there is a warning; where it does not, there is none."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import jumpforward as jf

INTEGER = {"type": "integer"}
AB = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}}
A_TO_B = {"a": ["b"]}

# A schema, a value that it refuses, and what the warning says: None where the grammar refuses the value as well.
CASES: list[tuple[dict[str, Any], Any, str | None]] = [
    ({"type": "string", "not": {"const": "a"}}, "a", "not (at /)"),
    ({"not": {"type": "string"}}, "a", "not (at /)"),
    ({"type": "array", "items": INTEGER, "uniqueItems": True}, [1, 1], "uniqueItems (at /)"),
    ({"type": "array", "items": INTEGER, "contains": {"const": 5}}, [1], "contains (at /)"),
    (AB | {"dependentRequired": A_TO_B}, {"a": 1}, "dependentRequired (at /)"),
    (AB | {"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, "dependentSchemas (at /)"),
    (INTEGER | {"if": {"minimum": 5}, "then": {"minimum": 10}}, 7, "if (at /)"),
    ({"allOf": [AB, {"required": ["b"]}]}, {"a": 1}, "allOf with more than one part (at /)"),
    ({"minimum": 5}, 4, "minimum without a type (at /)"),
    ({"maxLength": 2}, "aaaa", "maxLength without a type (at /)"),
    ({"required": ["a"]}, {}, "required without a type (at /)"),
    ({"patternProperties": {"^a": INTEGER}}, {"a": "b"}, "patternProperties without a type (at /)"),
    (AB | {"required": ["a", "z"]}, {"a": 1}, "required beyond properties, 'z', (at /)"),
    ({"additionalProperties": INTEGER, "required": ["z"]}, {"a": 1}, "required beyond properties, 'z', (at /)"),
    ({"type": "object", "required": ["z"]}, {}, "required beyond properties, 'z', (at /)"),
    ({"type": "string", "pattern": "^a*$", "maxLength": 3}, "aaaa", "maxLength beside pattern (at /)"),
    ({"type": ["string", "null"], "pattern": "^a*$", "minLength": 3}, "a", "minLength beside pattern (at /)"),
    ({"type": "string", "format": "date", "pattern": "^2021"}, "2020-01-01", "pattern beside format (at /)"),
    ({"type": "string", "format": "date", "maxLength": 3}, "2020-01-01", "maxLength beside format (at /)"),
    ({"type": "number", "multipleOf": 0.5}, 0.7, "multipleOf of a number (at /)"),
    (
        {"type": "object", "properties": {"n": {"minimum": 5}}, "required": ["n"]},
        {"n": 1},
        "minimum without a type (at /properties/n)",
    ),
    (INTEGER | {"multipleOf": 5}, 7, None),
    (INTEGER | {"minimum": 5}, 4, None),
    ({"type": "number", "exclusiveMinimum": 5}, 5, None),
    ({"type": ["integer", "string"], "minimum": 5, "maxLength": 2}, 3, None),
    ({"type": ["integer", "string"], "minimum": 5, "maxLength": 2}, "aaa", None),
    ({"type": "string", "minLength": 3}, "a", None),
    ({"type": "string", "format": "regex", "maxLength": 2}, "aaa", None),
    ({"type": "string", "format": "ours", "pattern": "^2"}, "a", None),
    ({"items": INTEGER, "minItems": 1}, [], None),
    ({"type": "array", "prefixItems": [INTEGER], "items": False}, [1, 2], None),
    (AB | {"required": ["a"]}, {"b": 1}, None),
    (AB | {"minProperties": 2}, {"a": 1}, None),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, {"b": 1}, None),
    ({"type": "object", "additionalProperties": INTEGER, "propertyNames": {"maxLength": 1}}, {"ab": 1}, None),
    ({"type": "array", "items": INTEGER, "uniqueItems": False, "maxItems": 2}, [1, 1, 1], None),
]


@pytest.mark.parametrize(("schema", "refused", "warning"), CASES)
def test_what_is_accepted_in_vain_is_warned_of(schema: dict[str, Any], refused: Any, warning: str | None) -> None:
    assert not Draft202012Validator(schema).is_valid(refused) or "format" in schema
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        grammar = jf.json_schema(schema)
    assert [str(each.message).split("the grammar: ")[1] for each in caught] == ([warning] if warning else [])
    assert grammar.accepts(json.dumps(refused).encode()) == (warning is not None)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "required": True},  # as draft 3 had it
        {"type": "object", "properties": {"a": {"type": "string", "required": False}}, "required": ["a"]},
        {"type": "string", "required": ["a"]},
        {"$ref": "#/$defs/n", "allOf": 5, "enum": 5, "$defs": {"n": INTEGER}},
        {"type": "integer", "items": 5, "properties": 5, "patternProperties": [], "minLength": "x"},
    ],
)
def test_what_means_nothing_is_no_error_and_no_constraint(schema: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jf.json_schema(schema)


def test_one_warning_says_it_all() -> None:
    names = "abcdefghij"
    schema = {"type": "object", "properties": {name: {"minimum": 1} for name in names}, "not": {"not": {"maximum": 1}}}
    with pytest.warns(jf.GrammarWarning) as caught:
        jf.json_schema(schema)
    message = str(caught[0].message)
    assert len(caught) == 1
    assert message.count("(at ") == 8
    assert "/not" not in message
    assert message.endswith("; and 3 more")


@given(st.text(st.characters(max_codepoint=0x2028, exclude_categories=("Cs",)), min_size=1, max_size=4))
def test_strings_of_a_bounded_length_hold_what_json_lets_them_hold(text: str) -> None:
    bounded = jf.json_schema({"type": "string", "minLength": 1, "maxLength": 4})
    as_written = f'"{text}"'
    try:
        is_json = json.loads(as_written) == text
    except json.JSONDecodeError:
        is_json = False
    assert bounded.accepts(as_written.encode()) == is_json
