"""Bytes to text, as soon as it is certain."""

from __future__ import annotations

import codecs

from jumpforward.engine.sequence import Sequence


def whole_characters(data: bytes) -> str:
    """Return the text of ``data`` without an unfinished character at its end."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(data)


class TextStream:
    """The pieces of a sequence's text: joined, they are the final text.

    Held back are unfinished characters, and bytes that may turn out to begin a stop string.
    """

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_taken = 0

    def new_text(self) -> str:
        """Return the text that has become certain since the last call; it may be empty."""
        end = self._sequence.num_certain_bytes
        data = bytes(self._sequence.data[self._num_taken : end])
        self._num_taken = max(end, self._num_taken)
        return self._decoder.decode(data)
