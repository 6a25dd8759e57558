"""JSON documents with the grammars that accept them: a few of our own, and many where a folder of them is at hand."""

from __future__ import annotations

import json
import os
import random
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jumpforward as jf

# Files of lines with "schema" and "valid", as JSONSchemaBench's can be brought into; beside the checkout by default.
FOLDER = Path(os.environ.get("JUMPFORWARD_DATA") or Path(__file__).parents[2] / "shared" / "data")
_SEED = 20261130


@dataclass(frozen=True)
class Document:
    """A valid instance as ``json.dumps`` writes it, and a grammar (fixed separators) that accepts it."""

    schema: Any
    grammar: jf.Grammar
    data: bytes


def _record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_STRING = {"type": "string"}
_OWN: list[tuple[dict[str, Any], Any]] = [
    (
        _record(order_id={"type": "integer"}, orderName=_STRING, price={"type": "number"}, paid={"type": "boolean"}),
        {"order_id": 1234567, "orderName": "don't  we'll", "price": 12.5, "paid": True},
    ),
    (
        {**_record(orderId=_STRING, orderName=_STRING, tags={"type": "array", "items": _STRING}), "required": ["tags"]},
        {"orderName": "ab\t", "tags": ["", " ", "1 2", "_x"]},
    ),
    (
        _record(**{"名前": _STRING, "größe (cm)": {"type": "integer"}, "😀": {"enum": ["在线 😀 é", "在线 😁"]}}),
        {"名前": "霍格沃茨", "größe (cm)": 180, "😀": "在线 😀 é"},
    ),
    (
        _record(**{'k\u0001"q\\': {"const": "a</s>b <|im_end|> <s>[INST]"}, "a/b  c": {"enum": [1, 12, "1", None]}}),
        {'k\u0001"q\\': "a</s>b <|im_end|> <s>[INST]", "a/b  c": 12},
    ),
    (
        _record(a=_record(b={"type": "array", "items": _record(c={"type": "integer"})}), z={"type": "null"}),
        {"a": {"b": [{"c": -1}, {"c": 22}, {"c": 333}]}, "z": None},
    ),
]


@cache
def own() -> tuple[Document, ...]:
    """Return the documents that are written here: digits, spaces, other scripts, escapes, special tokens' spellings."""
    return tuple(document for schema, value in _OWN for document in _accepted(schema, [value]))


def own_rows() -> list[dict[str, Any]]:
    """Return the same as the lines of a file would give them."""
    return [
        {"id": f"own-{number}", "split": "own", "schema": schema, "valid": [value]}
        for number, (schema, value) in enumerate(_OWN)
    ]


def drawn(folder: Path, num_documents: int) -> list[Document]:
    """Return documents from all files of a folder, drawn in a fixed random order, that their grammars accept."""
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    rows = [row for row in map(json.loads, lines) if row.get("valid")]
    random.Random(_SEED).shuffle(rows)
    documents: list[Document] = []
    for row in rows:
        if len(documents) >= num_documents:
            break
        documents += _accepted(row["schema"], row["valid"])
    return documents[:num_documents]


def _accepted(schema: Any, values: Iterable[Any]) -> Iterator[Document]:
    try:
        with warnings.catch_warnings(action="ignore", category=jf.GrammarWarning):
            grammar = jf.json_schema(schema)
    except jf.GrammarError:
        return
    for value in values:
        data = json.dumps(value, ensure_ascii=False).encode()
        if grammar.accepts(data):
            yield Document(schema, grammar, data)
