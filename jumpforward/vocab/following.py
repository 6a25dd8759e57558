"""What may come behind a text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Following:
    """What may come behind a known text.

    Attributes:
        first_bytes: the bytes with which more text may begin, in ascending order.
        may_end: whether the text may end there.
    """

    first_bytes: bytes
    may_end: bool

    @property
    def is_ascii(self) -> bool:
        """Whether the next character is in ASCII, if there is one."""
        return not self.first_bytes or self.first_bytes[-1] < 0x80


ANY_TEXT = Following(bytes(range(256)), may_end=True)
