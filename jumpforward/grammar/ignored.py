"""What a JSON Schema says without effect: xgrammar 0.2.9 drops it, and more is accepted than the schema says."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from jumpforward.errors import GrammarWarning
from jumpforward.grammar.schema_checks import subschemas

_MAX_NAMED = 8
_NEVER_READ = ("not", "if", "contains", "uniqueItems", "dependentRequired", "dependentSchemas", "dependencies",
               "$dynamicRef", "$recursiveRef")  # fmt: skip
_NEVER_READ_BESIDE = ("then", "else")  # without an `if` they mean nothing
# Beside a reference or an alternative only that is read, and the rest of the object is dropped.
_WINS_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_CONSTRAINTS = ("type", "properties", "required", "additionalProperties", "items", "pattern",
                "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems")  # fmt: skip
# Keywords from which a missing type is guessed, and those that are dropped where there is none.
_IMPLY_TYPE = ("properties", "additionalProperties", "unevaluatedProperties", "items", "prefixItems",
               "unevaluatedItems")  # fmt: skip
_NEED_TYPE = ("pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
              "multipleOf", "minItems", "maxItems", "minProperties", "maxProperties", "propertyNames",
              "patternProperties", "required")  # fmt: skip
_FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uri-reference",
            "uuid", "uri-template", "json-pointer", "relative-json-pointer")  # fmt: skip


def warn_of_ignored_keywords(schema: Any) -> None:
    """Warn of what has no effect on the grammar, with its places. A format that is not known is no constraint."""
    found = list(_found(schema))
    if found:
        more = f"; and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
        warnings.warn(
            "more is accepted than the schema says, since these have no effect on the grammar: "
            f"{'; '.join(found[:_MAX_NAMED])}{more}",
            GrammarWarning,
            stacklevel=3,
        )


def _found(schema: Any) -> Iterator[str]:
    unread: tuple[str, ...] = ()  # what is inside of these has no effect either
    names: set[str] = set()  # schemas of keys, which need not say that they are strings
    for pointer, part in subschemas(schema):
        if not isinstance(part, dict) or f"{pointer}/".startswith(unread):
            continue
        dropped = [key for key in (*_NEVER_READ, *_NEVER_READ_BESIDE) if key in part]
        dropped += ["allOf"] if _has_several_parts(part) else []
        unread += tuple(f"{pointer}/{key}/" for key in dropped)
        names.add(f"{pointer}/propertyNames")
        for what in _ignored({"type": "string"} | part if pointer in names else part):
            yield f"{what} (at {pointer or '/'})"


def _ignored(part: Mapping[str, Any]) -> Iterator[str]:
    """Describe what has no effect in one part of a schema, apart from the parts of that."""
    if never := [key for key in _NEVER_READ if part.get(key, False) is not False]:
        yield ", ".join(never)
    winner = next((key for key in _WINS_ALONE if key in part), None)
    if winner is not None:
        beside = [key for key in _CONSTRAINTS if key in part]
        if beside and winner not in ("const", "enum"):  # which say it all, as a rule
            yield f"{', '.join(beside)} beside {winner}"
        if winner == "allOf" and _has_several_parts(part):
            yield "allOf with more than one part"
    elif "type" in part or any(key in part for key in _IMPLY_TYPE):
        yield from _ignored_of_type(part)
    elif typeless := [key for key in _NEED_TYPE if key in part]:
        yield f"{', '.join(typeless)} without a type"


def _ignored_of_type(part: Mapping[str, Any]) -> Iterator[str]:
    kinds = part.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if "string" in kinds:
        reader = "format" if part.get("format") in _FORMATS else "pattern"
        unread = [key for key in ("pattern", "minLength", "maxLength") if key in part and key != reader]
        if reader in part and unread:
            yield f"{', '.join(unread)} beside {reader}"
    if "number" in kinds and "multipleOf" in part:
        yield "multipleOf of a number"
    required = part.get("required")
    # Draft 3 has true and false there, which say something of the key in front of it.
    names = required if isinstance(required, list) and ("object" in kinds or "type" not in part) else []
    if beyond := [name for name in names if name not in part.get("properties", ())]:
        yield f"required beyond properties, {', '.join(map(repr, beyond))},"


def _has_several_parts(part: Mapping[str, Any]) -> bool:
    all_of = part.get("allOf")
    return isinstance(all_of, list) and len(all_of) > 1
