"""What a change of the schema or of its reading would buy: the same documents, walked through the changed grammar.

fixed separators: whitespace as ``json.dumps`` writes it, where it was flexible.
no additional properties: strict reading, where it was open.
required where always there: properties that every instance of the schema has, at every place where an object
    could have them, become required. Absent ones stay optional, so that all instances stay legal.
declared order: keys in the schema's order, which is how grammars are made here, against keys in any order. The grammar
    of any order is xgrammar's, which forgets which keys have come; one that remembered would force more, so that this
    gain is an upper bound.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from jumpforward.report.places import Places, at, required
from jumpforward.report.settings import Setting

FIXED, CLOSED, REQUIRED, ORDERED = (
    "fixed separators",
    "no additional properties",
    "required where always there",
    "declared order",
)
CHANGES = (FIXED, CLOSED, REQUIRED, ORDERED)


def changed_setting(change: str, setting: Setting) -> Setting | None:
    """Return the setting with a change of the reading made; None where it changes nothing."""
    if change == FIXED and setting.whitespace == "flexible":
        return setting.model_copy(update={"whitespace": "fixed"})
    if change == CLOSED and setting.strictness == "open":
        return setting.model_copy(update={"strictness": "strict"})
    return None


def with_required(schema: Any, instances: Iterable[Any]) -> Any | None:
    """Return the schema with those properties required that all instances have; None where that changes nothing."""
    always: dict[tuple[str | int, ...], set[str]] = {}
    places = Places(schema)
    for instance in instances:
        for part, value in places.objects(instance):
            always.setdefault(part.pointer, set(value)).intersection_update(value)
    added = dict(_added(schema, always))
    if not added:
        return None
    changed = copy.deepcopy(schema)
    for pointer, names in added.items():
        part = at(changed, pointer)
        part["required"] = [*required(part), *names]
    return changed


def _added(
    schema: Any, always: dict[tuple[str | int, ...], set[str]]
) -> Iterator[tuple[tuple[str | int, ...], list[str]]]:
    for pointer, names in always.items():
        part = at(schema, pointer)
        optional = [name for name in part["properties"] if name in names and name not in required(part)]
        if optional:
            yield pointer, optional
