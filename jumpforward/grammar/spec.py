"""What the user writes, parsed: a JSON Schema, a regex, an EBNF or Lark grammar, a choice, a structural tag.

xgrammar does the parsing. A :class:`Grammar` knows no tokens; an engine compiles it once for its
vocabulary and shares the result between requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from jumpforward.errors import GrammarError, OptionError
from jumpforward.grammar import schema_checks
from jumpforward.grammar.bytewise import ByteWalker, compile_bytewise
from jumpforward.grammar.endless import check_finite
from jumpforward.grammar.ignored import warn_of_ignored_keywords
from jumpforward.grammar.serialized import without_raw_controls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import xgrammar
    from pydantic import BaseModel

Whitespace = Literal["fixed", "compact", "flexible"]
WHITESPACES: tuple[str, ...] = get_args(Whitespace)
Kind = Literal["json_schema", "regex", "ebnf", "lark", "choice", "structural_tag"]

_MAX_WHITESPACE = 32
_SEPARATORS: dict[str, tuple[str, str]] = {"fixed": (", ", ": "), "compact": (",", ":")}


@dataclass(frozen=True, eq=False)
class Grammar:
    """A parsed grammar. Make one with :func:`json_schema`, :func:`regex` and their neighbours.

    Attributes:
        kind: which function made it.
        source: what the user wrote, as text.
        rules: xgrammar's form of it.
        schema: the JSON Schema, where there is one.
        model: the pydantic model, where the schema came from one.
    """

    kind: Kind
    source: str
    rules: xgrammar.Grammar = field(repr=False)
    schema: Any = None
    model: type[BaseModel] | None = None
    _behind: dict[str, Grammar] = field(default_factory=dict, repr=False)

    @cached_property
    def has_multibyte_literals(self) -> bool:
        """Whether a character outside ASCII is written out somewhere in the rules.

        Only then can the forced bytes end inside a character.
        """
        rules = str(self.rules).replace("\\\\", "")
        return re.search(r"\\x[89a-fA-F]|\\u|\\U|[^\x00-\x7f]", rules) is not None

    def walker(self) -> ByteWalker:
        """Return a new position at the start of the grammar that moves by bytes."""
        return ByteWalker(self._bytewise)

    @cached_property
    def _bytewise(self) -> xgrammar.CompiledGrammar:
        return compile_bytewise(self.rules)

    def accepts(self, data: bytes) -> bool:
        """Return whether ``data`` is a complete output."""
        walker = self.walker()
        return walker.consume(data) and walker.is_accepting

    def behind(self, text: str) -> Grammar:
        """Return the grammar of ``text`` with an output of this grammar behind it; the same object every time."""
        if text not in self._behind:
            self._behind[text] = self._made_behind(text)
        return self._behind[text]

    def _made_behind(self, text: str) -> Grammar:
        if self.kind == "choice":  # stays a kind that automata are made of
            return choice(text + member for member in json.loads(self.source))
        if self.kind == "regex":
            return regex(f"{_quoted(text)}({self.source})")
        import xgrammar

        literal = xgrammar.Grammar.from_ebnf(f"root ::= {_literal(text)}")
        return Grammar("ebnf", f"{_literal(text)} {self.source}", xgrammar.Grammar.concat(literal, self.rules))

    def parse(self, text: str) -> Any:
        """Return a complete output's value: a pydantic object, a JSON value, or the text itself.

        Raises ``pydantic.ValidationError`` where the model has rules that no schema can state.
        """
        if self.kind != "json_schema":
            return text
        # Not strict: a version of xgrammar whose rules are not known here may let control characters into strings.
        value = json.loads(text, strict=False)
        return value if self.model is None else self.model.model_validate_json(json.dumps(value))


def json_schema(
    schema: Mapping[str, Any] | str | bool | type[BaseModel],
    *,
    whitespace: Whitespace = "fixed",
    max_whitespace: int | None = _MAX_WHITESPACE,
    strict: bool = True,
) -> Grammar:
    """Return the grammar of the JSON documents that a schema describes, keys in the schema's order.

    Args:
        schema: a schema as a dictionary, as JSON text, or a pydantic model.
        whitespace: ``"fixed"`` writes ``, `` and ``: `` and nothing else, as ``json.dumps`` does,
            so that separators are forced; ``"compact"`` writes ``,`` and ``:``; ``"flexible"``
            leaves whitespace to the model, and almost nothing is forced behind the first brace.
        max_whitespace: with ``"flexible"``, the most whitespace characters in one place, so that a
            model cannot fill its budget with them. None sets no limit.
        strict: no properties or items beyond those that the schema names. False follows the JSON
            Schema standard, where an object is open unless it says otherwise.

    Raises:
        GrammarError: not JSON, not a schema, or a schema that xgrammar refuses; the message says
            which part. Also where a number would come out as another number.

    Warns:
        GrammarWarning: a part of the schema has no effect on the grammar.

    A ``pattern`` is matched against the whole string (the standard searches inside it).
    """
    if whitespace not in WHITESPACES:
        raise OptionError("whitespace", whitespace, f"one of {', '.join(WHITESPACES)}")
    if max_whitespace is not None and max_whitespace < 1:
        raise OptionError("max_whitespace", max_whitespace, "at least 1, or None for no limit")
    value, model = schema_checks.load(schema)

    def convert(part: Any) -> xgrammar.Grammar:
        return _schema_rules(part, whitespace, max_whitespace, strict=strict, any_order=False)

    rules = check_finite("json_schema", schema_checks.convert(value, convert))
    schema_checks.check_numbers(value, lambda part: ByteWalker(compile_bytewise(convert(part))).forced_bytes())
    warn_of_ignored_keywords(value)
    return Grammar("json_schema", json.dumps(value), rules, value, model)


def json_schema_in_any_order(schema: Any, *, whitespace: Whitespace, strict: bool) -> Grammar:
    """Return a grammar of a schema's documents with keys in any order: for comparisons, too wide to generate with.

    xgrammar's rules for it count properties and do not remember which came: a key may come twice, and another not at
    all. They force somewhat less than rules that remembered would.

    Raises:
        GrammarError: as :func:`json_schema`.
    """
    rules = schema_checks.convert(
        schema, lambda part: _schema_rules(part, whitespace, _MAX_WHITESPACE, strict=strict, any_order=True)
    )
    return Grammar("json_schema", json.dumps(schema), check_finite("json_schema", rules), schema)


def _schema_rules(
    schema: Any, whitespace: Whitespace, max_whitespace: int | None, *, strict: bool, any_order: bool
) -> xgrammar.Grammar:
    import xgrammar

    flexible = whitespace == "flexible"
    return without_raw_controls(
        xgrammar.Grammar.from_json_schema(
            json.dumps(schema, allow_nan=False),
            any_whitespace=flexible,
            separators=None if flexible else _SEPARATORS[whitespace],
            max_whitespace_cnt=max_whitespace if flexible else None,
            strict_mode=strict,
            any_order=any_order,
        )
    )


def regex(pattern: str) -> Grammar:
    """Return the grammar of the strings that ``pattern`` matches from end to end.

    Raises:
        GrammarError: the pattern does not parse, or uses what no automaton can do (look-around,
            back-references) or xgrammar does not support (flags, word boundaries).
    """
    return Grammar("regex", pattern, _rules("regex", lambda xgr: xgr.Grammar.from_regex(pattern)))


def ebnf(rules: str, *, root: str = "root") -> Grammar:
    """Return the grammar written in EBNF, in the dialect that llama.cpp calls GBNF.

    Raises:
        GrammarError: the rules do not parse; the message names line and column.
    """
    parsed = _rules("ebnf", lambda xgr: xgr.Grammar.from_ebnf(rules, root_rule_name=root))
    return Grammar("ebnf", rules, parsed)


def lark(rules: str) -> Grammar:
    """Return the grammar written in Lark's notation, with ``start`` as its first rule.

    Raises:
        GrammarError: the rules do not parse; the message names line and column.
    """
    return Grammar("lark", rules, _rules("lark", lambda xgr: xgr.Grammar.from_lark(rules)))


def choice(options: Iterable[str]) -> Grammar:
    """Return the grammar of exactly these strings.

    Raises:
        GrammarError: there are none, or one is not a string.
    """
    if not isinstance(options, Iterable):
        raise GrammarError("choice", f"expected strings, got {options!r}")
    members = [options] if isinstance(options, str) else list(dict.fromkeys(options))
    if not members:
        raise GrammarError("choice", "expected at least one string, got none")
    for member in members:
        if not isinstance(member, str):
            raise GrammarError("choice", f"expected strings, got {member!r}")
    rules = "root ::= " + " | ".join(map(_literal, members))
    parsed = _rules("choice", lambda xgr: xgr.Grammar.from_ebnf(rules))
    return Grammar("choice", json.dumps(members), parsed)


def structural_tag(tag: Mapping[str, Any] | str | Any) -> Grammar:
    """Return the grammar of free text with constrained parts, as xgrammar's structural tags describe it.

    Tags begin and end with text; those that name a special token by its id are not supported.

    Raises:
        GrammarError: the tag is not valid; the message says where.
    """
    value = dict(tag) if isinstance(tag, dict) else tag
    rules = _rules("structural_tag", lambda xgr: xgr.Grammar.from_structural_tag(value))
    source = value if isinstance(value, str) else json.dumps(value, default=str)
    return Grammar("structural_tag", source, rules)


def _literal(text: str) -> str:
    """Return EBNF for a text. JSON's escapes are EBNF's too, but for those of half a character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _quoted(text: str) -> str:
    """Return a pattern that matches a text."""
    return re.sub(r"[\\^$.|?*+()\[\]{}]", r"\\\g<0>", text)


def _rules(kind: Kind, parse: Callable[[Any], xgrammar.Grammar]) -> xgrammar.Grammar:
    import xgrammar

    try:
        rules = parse(xgrammar)
    except (RuntimeError, ValueError, TypeError) as error:
        raise GrammarError(kind, schema_checks.reason_of(error)) from error
    return check_finite(kind, rules)
