"""Python's regular expressions as a flat program, read by the standard library's own parser.

This is the only file that knows ``re._parser``, which has no promise of stability. Its tree becomes a program
in postfix order, so that neither this file nor what builds on it recurses with the depth of a pattern.

A pattern means what ``re.fullmatch`` says it means, or is refused. Greedy and lazy quantifiers describe the same
strings, so both are read. Refused are look-around, back-references, conditional, atomic and possessive groups,
word boundaries, and ``^`` and ``$`` as line anchors.

xgrammar reads regular expressions in ECMAScript's way, and :data:`XGRAMMAR` holds what makes this parser agree
with it. Of what both read, these still differ, and :func:`xgrammar_difference` finds them:

- ``^`` and ``$`` in the middle of a pattern, which xgrammar ignores;
- ``\\A`` and ``\\Z``, which are the letters A and Z there;
- ``[^]a]``, where ``[^]`` is already a whole class there;
- ``\\x41a``, where xgrammar takes as many hexadecimal digits as come, and octal escapes such as ``\\012``.

It also lets the bytes of surrogates (ED A0 to ED BF) into ranges that span them; no text contains those.

Python alone reads ``(?i)`` and other flags, ``(?P<name>...)``, ``(?#...)``, ``{,3}``, ``[]a]``, a bare brace and
``\\N{...}``; xgrammar alone reads ``\\cA``, ``\\u{1F600}``, ``[\\d-z]`` and unknown escapes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NoReturn

import numpy as np

from jumpforward.errors import GrammarError

Ranges = tuple[tuple[int, int], ...]

NUM_CODE_POINTS = 0x110000
_SURROGATES = slice(0xD800, 0xE000)  # not characters: no text contains them


@dataclass(frozen=True)
class Chars:
    """One character out of these ranges of code points, both ends included."""

    ranges: Ranges


@dataclass(frozen=True)
class Joined:
    """The last ``num_parts`` parts of the program, one behind the other. None of them: the empty string."""

    num_parts: int


@dataclass(frozen=True)
class Either:
    """One of the last ``num_parts`` parts of the program."""

    num_parts: int


@dataclass(frozen=True)
class Repeated:
    """The last part of the program, ``least`` to ``most`` times; None is without limit."""

    least: int
    most: int | None


@dataclass(frozen=True)
class Anchor:
    """The empty string, at one place only: ``^`` the start, ``Z`` the end, ``$`` the end or a last newline."""

    place: str


Instruction = Chars | Joined | Either | Repeated | Anchor
Program = tuple[Instruction, ...]


@dataclass(frozen=True)
class Dialect:
    """How a pattern is read: flags of the ``re`` module, and what ``\\s`` means where that is not ``re``'s."""

    flags: int = 0
    spaces: Ranges | None = None


PYTHON = Dialect()
XGRAMMAR = Dialect(
    re.ASCII | re.DOTALL,
    ((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
     (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)  # fmt: skip

# What the parser calls it -> what a user calls it, and how it is written.
_REFUSED = {
    "ASSERT": ("look-around", r"\(\?<?="),
    "ASSERT_NOT": ("look-around", r"\(\?<?!"),
    "GROUPREF": ("back-reference", r"\\[1-9]\d?|\(\?P="),
    "GROUPREF_EXISTS": ("conditional group", r"\(\?\("),
    "ATOMIC_GROUP": ("atomic group", r"\(\?>"),
    "POSSESSIVE_REPEAT": ("possessive quantifier", r"[*+?}]\+"),
    "AT_BOUNDARY": ("word boundary", r"\\b"),
    "AT_NON_BOUNDARY": ("word boundary", r"\\B"),
    "AT_BEGINNING": ("line anchor", r"\^"),
    "AT_END": ("line anchor", r"\$"),
}
_PLACES = {"AT_BEGINNING": "^", "AT_BEGINNING_STRING": "^", "AT_END": "$", "AT_END_STRING": "Z"}
_CATEGORIES = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}
# A class, a comment, an escape, an opening of a group, a quantifier with its mode, or one character.
_LEXEME = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?\#[^)]*\)|\\[1-9]\d?|\\.|\(\?P?<?[=!>(]|[*+?}][+?]|.", re.DOTALL)
# Escapes; only those that the two read otherwise are longer than two letters.
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{3}|[0-9]{2}|.)", re.DOTALL)


def parse(pattern: str, dialect: Dialect = PYTHON) -> Program:
    """Return ``pattern`` as a program: instructions in postfix order that leave one part.

    Raises:
        GrammarError: the pattern does not parse, or uses what is refused; the message names it and its place.
    """
    try:
        tree = _parser.parse(pattern, dialect.flags)
    except RecursionError as error:
        raise GrammarError("regex", "groups are nested too deeply") from error
    except (re.error, OverflowError, TypeError, ValueError) as error:
        raise GrammarError("regex", str(error)) from error
    program: list[Instruction] = []
    # The last item is next: a part of the tree with its flags, or an instruction whose parts are out.
    waiting: list[Any] = [(tree, tree.state.flags)]
    while waiting:
        item = waiting.pop()
        if not isinstance(item, tuple):
            program.append(item)
            continue
        part, flags = item
        instruction, parts = _step(pattern, part, flags, dialect.spaces)
        waiting += [instruction, *reversed(parts)]
    return tuple(program)


def xgrammar_difference(pattern: str) -> str | None:
    """Return what xgrammar would read otherwise, with its position; None where the two agree."""
    for escape in _ESCAPE.finditer(pattern):
        if len(escape[0]) > 2:
            return f"{escape[0]} at position {escape.start()}"
    for lexeme in _LEXEME.finditer(pattern):
        text, place = lexeme[0], lexeme.start()
        inner_start = text == "^" and place > 0
        inner_end = text == "$" and place < len(pattern) - 1
        if inner_start or inner_end or text in (r"\A", r"\Z") or text.startswith("[^]"):
            return f"{text} at position {place}"
    return None


def _step(pattern: str, part: Any, flags: int, spaces: Ranges | None) -> tuple[Instruction, list[Any]]:
    """Return the instruction of one part of the tree, and the parts that must come before it."""
    if isinstance(part, _parser.SubPattern):
        return Joined(len(part)), [(item, flags) for item in part]
    name, value = str(part[0]), part[1]
    if name in ("LITERAL", "NOT_LITERAL", "IN", "ANY"):
        return Chars(_char_ranges(_class_text(name, value), flags, spaces)), []
    if name == "FAILURE":  # what the parser makes of an empty negative look-ahead
        return Chars(()), []
    if name == "BRANCH":
        return Either(len(value[1])), [(option, flags) for option in value[1]]
    if name == "SUBPATTERN":
        _, added, removed, inner = value
        return Joined(1), [(inner, (flags | added) & ~removed)]
    if name in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, inner = value
        return Repeated(least, None if most == _parser.MAXREPEAT else int(most)), [(inner, flags)]
    if name == "AT":
        return _anchor(pattern, str(value), flags), []
    return _refuse(pattern, name)


def _anchor(pattern: str, name: str, flags: int) -> Anchor:
    by_line = flags & re.MULTILINE and name in ("AT_BEGINNING", "AT_END")
    return _refuse(pattern, name) if by_line or name not in _PLACES else Anchor(_PLACES[name])


def _refuse(pattern: str, name: str) -> NoReturn:
    construct, written = _REFUSED.get(name, (name.lower(), r"(?!)"))
    found = next((item for item in _LEXEME.finditer(pattern) if re.match(written, item[0])), None)
    where = f" {found[0]!r} at position {found.start()}" if found else ""
    raise GrammarError("regex", f"{construct}{where} is not supported")


def _class_text(name: str, value: Any) -> str:
    """Return an item of the tree as a character class, written out."""
    if name == "ANY":
        return "."
    items = value if name == "IN" else [(name.removeprefix("NOT_"), value)]
    negated = name == "NOT_LITERAL" or str(items[0][0]) == "NEGATE"
    members = [item for item in items if str(item[0]) != "NEGATE"]
    return "[" + "^" * negated + "".join(_member_text(str(op), arg) for op, arg in members) + "]"


def _member_text(op: str, arg: Any) -> str:
    if op == "CATEGORY":
        *_, negation, kind = ("", *str(arg).removeprefix("CATEGORY_").split("_"))
        letter = _CATEGORIES[kind]
        return "\\" + (letter.upper() if negation else letter)
    low, high = arg if op == "RANGE" else (arg, arg)
    return f"\\U{low:08x}-\\U{high:08x}"


@lru_cache(maxsize=1024)
def _char_ranges(text: str, flags: int, spaces: Ranges | None) -> Ranges:
    """Return the code points that a character class matches under ``flags``."""
    if text == ".":
        member = np.ones(NUM_CODE_POINTS, dtype=bool)
        member[ord("\n")] = bool(flags & re.DOTALL)
    else:
        member = _plain_members(text, bool(flags & re.ASCII), spaces)
        if flags & re.IGNORECASE:
            _match_case(member, text, flags)
    member[_SURROGATES] = False
    edges = np.flatnonzero(np.diff(np.concatenate([[False], member, [False]])))
    return tuple((int(low), int(end) - 1) for low, end in edges.reshape(-1, 2))


def _plain_members(text: str, ascii_only: bool, spaces: Ranges | None) -> np.ndarray:
    member = np.zeros(NUM_CODE_POINTS, dtype=bool)
    for low, high, category in re.findall(r"\\U(\w{8})-\\U(\w{8})|\\([dDsSwW])", text):
        if category:
            member |= _category(category.lower(), ascii_only, spaces) ^ category.isupper()
        else:
            member[int(low, 16) : int(high, 16) + 1] = True
    return ~member if text.startswith("[^") else member


@lru_cache(maxsize=16)
def _category(letter: str, ascii_only: bool, spaces: Ranges | None) -> np.ndarray:
    """Return which code points ``\\d``, ``\\s`` or ``\\w`` matches: boolean, one for each; do not write to it."""
    member = np.zeros(NUM_CODE_POINTS, dtype=bool)
    if letter == "s" and spaces is not None:
        found = [(low, high + 1) for low, high in spaces]
    else:  # the standard library is asked, so that its Unicode tables are the ones used
        every = "".join(map(chr, range(128 if ascii_only else NUM_CODE_POINTS)))
        found = [match.span() for match in re.finditer(rf"\{letter}+", every)]
    for start, end in found:
        member[start:end] = True
    return member


@lru_cache(maxsize=1)
def _cased() -> np.ndarray:
    """Return the code points of letters that have another case."""
    return np.array([code for code in range(NUM_CODE_POINTS) if chr(code).lower() != chr(code).upper()])


def _match_case(member: np.ndarray, text: str, flags: int) -> None:
    """Ask the standard library which letters the class matches when case is ignored."""
    matches = re.compile(text, flags & (re.IGNORECASE | re.ASCII)).match
    member[_cased()] = [matches(chr(code)) is not None for code in _cased().tolist()]
