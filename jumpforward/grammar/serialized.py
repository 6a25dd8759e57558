"""xgrammar's rules as it serializes them: lists of numbers, in the form of one version."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xgrammar

_KNOWN_FORMAT = "v18"  # xgrammar 0.2.9; the form of another version is not guessed at
_LEN_HEAD = 2  # an expression's kind, and how many numbers follow
_CLASS = 1
_NOT = 1
# What strings of a bounded length consist of, and what JSON lets them consist of: as many numbers, so that none moves.
_LOOSE = [_NOT, *map(ord, '""\\\\\r\r\n\n')]
_STRICT = [_NOT, 0x00, 0x1F, *map(ord, '""\\\\\\\\')]


def read(rules: xgrammar.Grammar) -> dict[str, Any] | None:
    """Return what is serialized; None where its form is not known."""
    spec: dict[str, Any] = json.loads(rules.serialize_json())
    return spec if spec.get("__VERSION__") == _KNOWN_FORMAT else None


def expressions(spec: dict[str, Any]) -> list[tuple[int, list[int]]]:
    """Return the kind and the parts of each expression."""
    return [(spec["grammar_expr_data"][start], spec["grammar_expr_data"][body]) for start, body in _places(spec)]


def without_raw_controls(rules: xgrammar.Grammar) -> xgrammar.Grammar:
    """Return a schema's rules without control characters in strings of a bounded length, where JSON has none.

    xgrammar 0.2.9 leaves out only line ends there; in all other strings it follows JSON.
    """
    import xgrammar

    spec = read(rules)
    if spec is None:
        return rules
    data = spec["grammar_expr_data"]
    loose = [body for start, body in _places(spec) if data[start] == _CLASS and data[body] == _LOOSE]
    for body in loose:
        data[body] = _STRICT
    return xgrammar.Grammar.deserialize_json(json.dumps(spec)) if loose else rules


def _places(spec: dict[str, Any]) -> list[tuple[int, slice]]:
    """Return where each expression starts, and where its parts are."""
    data, starts = spec["grammar_expr_data"], spec["grammar_expr_indptr"]
    bounds = starts if starts and starts[-1] == len(data) else [*starts, len(data)]
    return [(start, slice(start + _LEN_HEAD, end)) for start, end in pairwise(bounds)]
