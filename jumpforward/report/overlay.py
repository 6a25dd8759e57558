"""Tokens laid over forced text: the canonical ones, which of them are stable, and what could still replace the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.encoder import PlainEncoder
from jumpforward.vocab.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Overlay:
    """Forced text as tokens.

    Attributes:
        stable: the bytes of the tokens that no continuation can change.
        withheld: the bytes of those that one could.
        longer: a token that could take the place of the first withheld one; None where the tokenizer's rules do not
            settle it, or nothing is withheld.
    """

    stable: tuple[bytes, ...]
    withheld: tuple[bytes, ...]
    longer: bytes | None = None

    def layout(self) -> dict[str, Any]:
        """Return the overlay as JSON."""
        return {
            "stable": [piece.decode(errors="replace") for piece in self.stable],
            "withheld": [piece.decode(errors="replace") for piece in self.withheld],
            "longer": None if self.longer is None else self.longer.decode(errors="replace"),
        }


class Tokens:
    """A tokenizer, for looking at text through it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer)
        self._encoder = PlainEncoder(tokenizer, self.vocabulary)
        self._borders = StableBorders(tokenizer, self.vocabulary)
        self.pieces = frozenset(self.vocabulary.token_bytes) - {b""}

    def lengths(self, data: bytes) -> list[int]:
        """Return the lengths in bytes of a text's canonical tokens; empty where it has none."""
        ids = self._encoder.encode(data) or ()
        return [len(self.vocabulary.token_bytes[index]) for index in ids]

    def over(self, forced: bytes) -> Overlay | None:
        """Return forced text as tokens; None where it has no canonical ones."""
        ids = self._encoder.encode(forced)
        if ids is None:
            return None
        pieces = tuple(self.vocabulary.token_bytes[index] for index in ids)
        num_stable = self._borders.num_stable(ids)
        withheld = pieces[num_stable:]
        return Overlay(pieces[:num_stable], withheld, self._longer(b"".join(withheld)) if withheld else None)

    def _longer(self, withheld: bytes) -> bytes | None:
        """Return the shortest token that begins as the withheld text does and goes on behind its end."""
        longer = (piece for piece in self.pieces if len(piece) > len(withheld) and piece.startswith(withheld))
        return min(longer, key=lambda piece: (len(piece), piece), default=None)
