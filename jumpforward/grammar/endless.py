"""Rules that no finite text completes, such as ``root ::= "a" root``.

xgrammar accepts them, and then looks for the end of what they force until memory runs out. They are found here by a
fixed point over its serialized rules: a rule can end when some alternative consists of things that can end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jumpforward.errors import GrammarError
from jumpforward.grammar.serialized import expressions, read

if TYPE_CHECKING:
    import xgrammar

_RULE, _SEQUENCE, _CHOICES, _REPEAT = 4, 5, 6, 8


def check_finite(kind: str, rules: xgrammar.Grammar) -> xgrammar.Grammar:
    """Return the rules.

    Raises:
        GrammarError: one of them can never come to an end. The grammar may still have complete texts, but a model
            that steps into that rule would be led nowhere.
    """
    spec = read(rules)
    endless = _endless_rules(spec) if spec is not None else []
    if endless:
        raise GrammarError(
            kind,
            f"no finite text completes {', '.join(endless[:5])}; give every recursive rule or required property an "
            "alternative that does not lead back to it",
        )
    return rules


def _endless_rules(spec: dict[str, Any]) -> list[str]:
    known = expressions(spec)
    bodies = [rule[1] for rule in spec["rules"]]
    ends = [False] * len(bodies)
    while True:
        can_end = _expressions_that_end(known, ends)
        now = [can_end[body] for body in bodies]
        if now == ends:
            return [rule[0] for rule, end in zip(spec["rules"], ends, strict=True) if not end]
        ends = now


def _expressions_that_end(known: list[tuple[int, list[int]]], ends: list[bool]) -> list[bool]:
    """Return which expressions can end, given which rules can. An expression's parts stand before it."""
    can_end: list[bool] = []
    for kind, parts in known:
        if kind == _RULE:
            can_end.append(ends[parts[0]])
        elif kind == _SEQUENCE:
            can_end.append(all(can_end[part] for part in parts))
        elif kind == _CHOICES:
            can_end.append(any(can_end[part] for part in parts))
        elif kind == _REPEAT:
            can_end.append(parts[1] == 0 or ends[parts[0]])
        else:
            can_end.append(True)
    return can_end
