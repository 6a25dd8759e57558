"""The protocol that every matcher keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Matcher(Protocol):
    """One request's place in a grammar. Queries change nothing; a refused token changes nothing."""

    def consume(self, token: int) -> bool:
        """Move over a token, an end token included; False, and no move, where it is not legal."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last ``num_tokens`` tokens."""
        ...

    def fork(self) -> Matcher:
        """Return an independent matcher at the same place."""
        ...

    def forced_bytes(self) -> bytes:
        """Return the bytes that every completion starts with, up to where the output may end."""
        ...

    def fill_bitmask(self, bitmask: torch.Tensor, row: int) -> None:
        """Write the legal tokens into a row of ``bitmask``: int32, (rows, ceil(width / 32)), 1 = legal.

        Nothing is legal behind an end token.
        """
        ...

    def has_choice(self) -> bool:
        """Whether more than one token is legal, as far as can be said for less than a mask row costs; else False.

        True may be wrong where a vocabulary lacks a few bytes that no text has, and the grammar wants just those.
        """
        ...

    def live_bytes(self, behind: bytes = b"") -> bytes:
        """Return the bytes that may come next, in ascending order, whatever tokens there are.

        ``behind`` moves the place in question on by bytes that the grammar permits from here.
        """
        ...

    def missing_bytes(self) -> bytes:
        """Return the bytes that the grammar wants and no token spells, in ascending order. For messages: slow."""
        ...

    @property
    def is_accepting(self) -> bool:
        """Whether the output so far is complete."""
        ...

    @property
    def is_terminated(self) -> bool:
        """Whether an end token has been consumed."""
        ...


class LimitedMatcher:
    """What matchers share that permit less than another one does: they ask that one.

    What is forced and which bytes are live is said whatever the limit.
    """

    def __init__(self, inner: Matcher) -> None:
        """Limit what ``inner`` permits."""
        self._inner = inner

    def forced_bytes(self) -> bytes:
        """Return the bytes that every completion starts with."""
        return self._inner.forced_bytes()

    def live_bytes(self, behind: bytes = b"") -> bytes:
        """Return the bytes that may come next, in ascending order."""
        return self._inner.live_bytes(behind)

    def missing_bytes(self) -> bytes:
        """Return the bytes that the grammar wants and no token spells."""
        return self._inner.missing_bytes()

    @property
    def is_accepting(self) -> bool:
        """Whether the output so far is complete."""
        return self._inner.is_accepting

    @property
    def is_terminated(self) -> bool:
        """Whether an end token has been consumed."""
        return self._inner.is_terminated
