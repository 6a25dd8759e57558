"""What can be wrong with a JSON Schema, found before it is used.

xgrammar reads schemas leniently: large numbers are rewritten, and an error names no place. These checks say so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jumpforward.errors import GrammarError

if TYPE_CHECKING:
    import xgrammar
    from pydantic import BaseModel

_KIND = "json_schema"
_SUBSCHEMA = ("additionalProperties", "items", "contains", "not", "if", "then", "else",
              "propertyNames", "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_SUBSCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SUBSCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DEFINITIONS = ("$defs", "definitions")


def load(schema: Mapping[str, Any] | str | bool | type[BaseModel]) -> tuple[Any, type[BaseModel] | None]:
    """Return the schema as a JSON value, and the pydantic model that it came from if it did."""
    from pydantic import BaseModel

    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return schema.model_json_schema(), schema
    value = _parse(schema) if isinstance(schema, str) else schema
    if not isinstance(value, Mapping | bool):
        raise GrammarError(_KIND, f"expected a JSON object, true or false, got {type(value).__name__}")
    return value if isinstance(value, bool) else dict(value), None


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise GrammarError(_KIND, f"not JSON: {error}") from error
    except RecursionError as error:
        raise GrammarError(_KIND, "nested too deeply") from error


def convert(schema: Any, to_rules: Callable[[Any], xgrammar.Grammar]) -> xgrammar.Grammar:
    """Return ``to_rules(schema)``; where that fails, say in which part of the schema."""
    try:
        return to_rules(schema)
    except RuntimeError as error:
        place, reason = _deepest_failure(schema, to_rules, error)
        where = f" (at {place})" if place else ""
        raise GrammarError(_KIND, reason + where) from error
    except (TypeError, ValueError) as error:
        raise GrammarError(_KIND, f"cannot be written as JSON: {error}") from error


def reason_of(error: Exception) -> str:
    """Return an xgrammar error's message without its time stamp and source line."""
    return re.sub(r"^\[[\d:]+\] \S+?:\d+: ", "", str(error)).strip()


def _deepest_failure(schema: Any, to_rules: Callable[[Any], xgrammar.Grammar], error: Exception) -> tuple[str, str]:
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema} if isinstance(schema, dict) else {}
    place, reason = "", reason_of(error)
    for pointer, part in subschemas(schema):
        if not isinstance(part, bool) and pointer.startswith(place):
            try:
                to_rules({**definitions, **part} if isinstance(part, dict) else part)
            except (RuntimeError, ValueError) as inner:
                place, reason = pointer, reason_of(inner)
    return place, reason


def subschemas(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield every part of a schema that is a schema, itself first, with its JSON pointer."""
    waiting = [("", schema)]
    while waiting:
        pointer, part = waiting.pop()
        yield pointer, part
        if isinstance(part, dict):
            waiting += reversed(list(_children(pointer, part)))


def _children(pointer: str, part: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in part.items():
        here = f"{pointer}/{_escape(key)}"
        if key in _SUBSCHEMA:
            yield here, value
        elif key in _SUBSCHEMA_LISTS and isinstance(value, list):
            yield from ((f"{here}/{index}", item) for index, item in enumerate(value))
        elif key in _SUBSCHEMA_MAPS and isinstance(value, dict):
            yield from ((f"{here}/{_escape(name)}", item) for name, item in value.items())


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def check_numbers(schema: Any, forced_bytes: Callable[[Any], bytes]) -> None:
    """Refuse a ``const`` or ``enum`` number that the grammar would write as another number.

    ``forced_bytes`` gives what the grammar of a schema forces from its start.
    """
    for pointer, part in subschemas(schema):
        if not isinstance(part, dict):
            continue
        members = part.get("enum")
        for value in [part["const"]] if "const" in part else members if isinstance(members, list) else ():
            if _has_delicate_number(value):
                written = forced_bytes({"const": value}).decode()
                if json.loads(written) != value:
                    raise GrammarError(
                        _KIND,
                        f"{json.dumps(value)} (at {pointer or '/'}) would be written as {written}, another "
                        "value; write it as a string, or describe it with a pattern",
                    )


def _has_delicate_number(value: Any) -> bool:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, float) or (isinstance(item, int) and abs(item) >= 2**53):
            return True
    return False
