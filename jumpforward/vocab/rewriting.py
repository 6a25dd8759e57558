"""What a tokenizer does to a text before it is cut: it rewrites characters, and takes out added tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jumpforward.vocab.pattern_parser import UnknownRuleError
from jumpforward.vocab.split_rule import SplitRule
from jumpforward.vocab.vocabulary import ANY_BYTE

_SPACE = {"String": " "}
_COMPOSING_SIGNS = "<=>"  # with a stroke over them they are characters of their own; of ASCII otherwise only letters


def space_letter(normalizer: Sequence[dict[str, Any]]) -> str:
    """Return what a normalizer makes of a space."""
    letters = [step["content"] for step in normalizer if step["type"] == "Replace" and step["pattern"] == _SPACE]
    return letters[0] if letters else " "


class Rewriting:
    """The normalizer and the added tokens of a tokenizer that are plain text."""

    def __init__(self, normalizer: Sequence[dict[str, Any]], added_tokens: Sequence[dict[str, Any]]) -> None:
        """Read them.

        Raises:
            UnknownRuleError: what one of them does to a text is not understood.
        """
        self._composes = any(step["type"] == "NFC" for step in normalizer)
        self._replaces = any(list(map(_replaces, normalizer)))  # all of them are checked
        self._added = [token["content"] for token in added_tokens if not token["special"]]
        self._whole_words = [
            token["content"] for token in added_tokens if not token["special"] and token["single_word"]
        ]
        if any(token["lstrip"] or token["rstrip"] for token in added_tokens if not token["special"]):
            raise UnknownRuleError("an added token that takes spaces with it")

    def settled(self, text: str, next_bytes: bytes) -> tuple[str, bytes]:
        """Return the part of a text that nothing behind it rewrites or takes out, and what that part may go on with.

        ``next_bytes`` are those with which text behind it can begin.
        """
        kept = text
        if not next_bytes.isascii() and (self._replaces or self._composes):
            next_bytes = ANY_BYTE
            kept = _without_open_character(kept) if self._composes else kept
        kept = kept[: min((_begun(kept, content, next_bytes) for content in self._added), default=len(kept))]
        return kept, next_bytes if len(kept) == len(text) else ANY_BYTE

    def takes_out(self, text: str) -> bool:
        """Whether an added token may stand in a text, which is then cut before the pre-tokenizer sees it."""
        return any(content in text for content in self._added)

    def may_cross(self, left: str, right: str) -> bool:
        """Whether a rewriting or an added token may concern two characters next to each other at once."""
        pair = left + right
        return (
            (self._composes and not right.isascii())
            or any(pair in content for content in self._added)
            or any(content.startswith(right) for content in self._whole_words)
        )


def _begun(text: str, content: str, next_bytes: bytes) -> int:
    """Return where an added token could begin that is not complete yet; the text's length where none could."""
    lengths = range(min(len(content) - 1, len(text)), 0, -1)
    begun = (length for length in lengths if text.endswith(content[:length]))
    return len(text) - next((length for length in begun if content[length:].encode()[0] in next_bytes), 0)


def _replaces(step: dict[str, Any]) -> bool:
    """Whether a step may change characters outside ASCII; UnknownRuleError where it may change others too."""
    if step["type"] in ("NFC", "Prepend"):
        return False
    pattern = step.get("pattern", {})
    if step["type"] == "Replace" and pattern == _SPACE and len(step["content"]) == 1:
        return False
    if step["type"] == "Replace" and "Regex" in pattern:
        rule = SplitRule(pattern["Regex"])
        if rule.is_one_character and not any(rule.signature(chr(value)) for value in range(128) if value != 0x20):
            return True
    raise UnknownRuleError(f"the normalizer's step {step['type']} {pattern or ''}".rstrip())


def _without_open_character(text: str) -> str:
    """Return a text without the end of it with which marks behind it could be composed into other characters."""
    while text and not text[-1].isascii():
        text = text[:-1]
    if text and (text[-1].isalpha() or text[-1] in _COMPOSING_SIGNS):
        text = text[:-1]
    return text
