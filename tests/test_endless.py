"""Grammars that no text completes are refused, before xgrammar looks for their end without end."""

from __future__ import annotations

import pytest

import jumpforward as jf


def record(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize(
    "make",
    [
        lambda: jf.ebnf('root ::= "a" root'),
        lambda: jf.ebnf("root ::= root"),
        lambda: jf.ebnf('root ::= "x" | "y" loop\nloop ::= "a" loop'),
        lambda: jf.lark('start: "a" start'),
        lambda: jf.json_schema(record(next={"$ref": "#"})),
    ],
)
def test_endless_rules_are_refused_by_name(make: object) -> None:
    with pytest.raises(jf.GrammarError, match="no finite text completes"):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: jf.ebnf('root ::= "(" root ")" | "x"'),
        lambda: jf.ebnf('root ::= "a" root | ""'),
        lambda: jf.json_schema(record(next={"anyOf": [{"$ref": "#"}, {"type": "null"}]})),
        lambda: jf.json_schema({"type": "array", "items": {"$ref": "#"}}),
        lambda: jf.json_schema(True),
        lambda: jf.regex("a{3}(b|c)*"),
        lambda: jf.lark('start: "a" x\nx: "c" x?'),
    ],
)
def test_recursion_with_a_way_out_is_kept(make: object) -> None:
    grammar = make()
    assert isinstance(grammar.walker().forced_bytes(), bytes)
