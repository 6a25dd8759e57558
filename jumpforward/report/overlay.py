"""Tokens laid over forced text: the canonical ones, which of them are stable, and what could still replace the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jumpforward.decoding.boundary import Boundary
from jumpforward.grammar.draw import byte_text
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
        unknown: what of the tokenizer is not understood, so that all is withheld; None where all is.
        rival: a token because of which they are withheld: one that begins inside them and goes on behind their end.
            None where no token does, or nothing is withheld.
    """

    stable: tuple[bytes, ...]
    withheld: tuple[bytes, ...]
    rival: bytes | None = None
    unknown: str | None = None

    @property
    def reason(self) -> str:
        """Why tokens are withheld, in words; empty where none are."""
        if not self.withheld:
            return ""
        if self.unknown is not None:
            return f"nothing is written with {self.unknown}, which is not understood"
        if self.rival is None:
            return "what follows is not known, and the tokenizer's cuts may depend on it"
        return f"a token {byte_text(self.rival)!r} could come"

    def layout(self) -> dict[str, Any]:
        """Return the overlay as JSON."""
        return {
            "stable": [piece.decode(errors="replace") for piece in self.stable],
            "withheld": [piece.decode(errors="replace") for piece in self.withheld],
            "rival": None if self.rival is None else self.rival.decode(errors="replace"),
            "reason": self.reason,
        }


class Tokens:
    """A tokenizer, for looking at text through it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        # Nothing is generated here: a tokenizer without an end of text gets one behind its vocabulary.
        behind = max(tokenizer.get_vocab().values()) + 1
        own = (None, None) if tokenizer.eos_token_id is not None else (behind + 1, [behind])
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, width=own[0], end_ids=own[1])
        self._encoder = PlainEncoder(tokenizer, self.vocabulary)
        self._borders = StableBorders(tokenizer, self.vocabulary)
        self.boundary = Boundary(self._encoder, self._borders)
        self.pieces = frozenset(self.vocabulary.token_bytes) - {b""}

    def encode(self, data: bytes) -> tuple[int, ...] | None:
        """Return a text's canonical tokens; None where it has none."""
        return self._encoder.encode(data)

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
        rival = self._rival(withheld) if withheld else None
        return Overlay(pieces[:num_stable], withheld, rival, self._borders.reason)

    def _rival(self, withheld: tuple[bytes, ...]) -> bytes | None:
        """Return the shortest token that could take the place of withheld ones."""
        text = b"".join(withheld)
        for place in range(len(text)):
            rest = text[place:]
            longer = [piece for piece in self.pieces if len(piece) > len(rest) and piece.startswith(rest)]
            if longer:
                return min(longer, key=lambda piece: (len(piece), piece))
        return None
