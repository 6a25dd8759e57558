"""Which parts of a schema speak of which values in an instance: for its keys' order, and for what it always has.

A small reading of JSON Schema, for guesses that a grammar checks afterwards: local references, ``allOf``, ``anyOf`` and
``oneOf`` (the branches that fit the instance's type and keys), properties and items.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": int,
}


@dataclass(frozen=True)
class Part:
    """A part of a schema: its JSON pointer, as keys and indexes, and what stands there."""

    pointer: tuple[str | int, ...]
    schema: dict[str, Any]


class Places:
    """One schema, read along instances."""

    def __init__(self, schema: Any) -> None:
        self._root = schema

    def ordered(self, value: Any) -> Any:
        """Return an instance with the keys of its objects in the order in which the schema declares them."""
        return self._ordered(value, self._parts((), self._root, value))

    def objects(self, value: Any) -> Iterator[tuple[Part, dict[str, Any]]]:
        """Yield every object of an instance with each part of the schema that declares properties for it."""
        waiting = [(value, self._parts((), self._root, value))]
        while waiting:
            item, parts = waiting.pop()
            if isinstance(item, dict):
                yield from ((part, item) for part in parts if named(part.schema, "properties"))
            waiting += [(child, self._below(parts, key, child)) for key, child in _children(item)]

    def _ordered(self, value: Any, parts: list[Part]) -> Any:
        if isinstance(value, list):
            return [self._ordered(item, self._below(parts, index, item)) for index, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        declared = [name for part in parts for name in named(part.schema, "properties")]
        keys = [*dict.fromkeys(name for name in declared if name in value), *value]
        return {key: self._ordered(value[key], self._below(parts, key, value[key])) for key in dict.fromkeys(keys)}

    def _below(self, parts: list[Part], key: str | int, value: Any) -> list[Part]:
        """Return the parts that speak of the value under a key or index."""
        steps = [(part, step) for part in parts for step in _steps(part.schema, key)]
        return [
            found for part, step in steps for found in self._parts((*part.pointer, *step), at(part.schema, step), value)
        ]

    def _parts(self, pointer: tuple[str | int, ...], schema: Any, value: Any) -> list[Part]:
        """Return the parts that apply where ``schema`` does: itself, what it refers to, its fitting branches."""
        found: dict[tuple[str | int, ...], Part] = {}
        waiting = [(pointer, schema)]
        while waiting:
            here, part = waiting.pop(0)
            if not isinstance(part, dict) or here in found:
                continue
            found[here] = Part(here, part)
            waiting += self._referred(part)
            for keyword in ("allOf", "anyOf", "oneOf"):
                branches = list(enumerate(part[keyword])) if isinstance(part.get(keyword), list) else []
                fitting = [pair for pair in branches if keyword == "allOf" or self._fits(pair[1], value)]
                waiting += [((*here, keyword, index), branch) for index, branch in fitting or branches]
        return list(found.values())

    def _referred(self, part: dict[str, Any]) -> list[tuple[tuple[str | int, ...], Any]]:
        reference = part.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return []
        names = [unquote(name).replace("~1", "/").replace("~0", "~") for name in reference[1:].split("/")[1:]]
        target, pointer = self._root, []
        for name in names:
            step: str | int = int(name) if isinstance(target, list) and name.isdecimal() else name
            try:
                target = target[step]
            except (KeyError, IndexError, TypeError):
                return []
            pointer.append(step)
        return [(tuple(pointer), target)]

    def _fits(self, branch: Any, value: Any) -> bool:
        if not isinstance(branch, dict):
            return bool(branch)
        for _, target in self._referred(branch):
            branch = target if isinstance(target, dict) else branch
        kinds = branch.get("type", list(_TYPES))
        if not any(_is_of(kind, value) for kind in (kinds if isinstance(kinds, list) else [kinds])):
            return False
        if "const" in branch and branch["const"] != value:
            return False
        if not isinstance(value, dict):
            return value in branch["enum"] if isinstance(branch.get("enum"), list) else True
        properties = named(branch, "properties")
        is_closed = branch.get("additionalProperties") is False and not named(branch, "patternProperties")
        if is_closed and value.keys() - properties:
            return False
        fixed = {key: part["const"] for key, part in properties.items() if isinstance(part, dict) and "const" in part}
        return value.keys() >= set(required(branch)) and all(
            value.get(key, wanted) == wanted for key, wanted in fixed.items()
        )


def at(schema: Any, pointer: tuple[str | int, ...]) -> Any:
    """Return what stands at a pointer."""
    for step in pointer:
        schema = schema[step]
    return schema


def named(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    """Return a keyword's schemas by name; none where it is something else, which is for the grammar to refuse."""
    found = schema.get(keyword)
    return found if isinstance(found, dict) else {}


def required(schema: dict[str, Any]) -> list[str]:
    """Return the names of required properties; in old drafts the keyword is a boolean, and names none."""
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _children(value: Any) -> list[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _is_of(kind: Any, value: Any) -> bool:
    known = _TYPES.get(kind, object) if isinstance(kind, str) else object
    return isinstance(value, known) and (kind == "boolean" or not isinstance(value, bool))


def _steps(schema: dict[str, Any], key: str | int) -> list[tuple[str | int, ...]]:
    """Return the ways from a part to the parts for what stands under a key or index."""
    if isinstance(key, int):
        prefix = schema.get("prefixItems", schema.get("items"))
        if isinstance(prefix, list):
            name = "prefixItems" if "prefixItems" in schema else "items"
            rest = "items" if name == "prefixItems" else "additionalItems"
            return [(name, key)] if key < len(prefix) else [(rest,)] * (rest in schema)
        return [("items",)] * ("items" in schema)
    if key in named(schema, "properties"):
        return [("properties", key)]
    patterns = [pattern for pattern in named(schema, "patternProperties") if _matches(pattern, key)]
    if patterns:
        return [("patternProperties", pattern) for pattern in patterns]
    return [("additionalProperties",)] * ("additionalProperties" in schema)


def _matches(pattern: str, key: str) -> bool:
    try:
        return re.search(pattern, key) is not None
    except re.error:  # a pattern in another dialect; the grammar has the last word
        return False
