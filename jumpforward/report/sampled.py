"""Documents sampled from a grammar, for schemas that have no instances.

A random walk by bytes: at every choice a byte is drawn, and after some bytes those are preferred that end a string, a
number, a list or an object. Sampled documents are shorter and simpler than real ones, so that more of their text is
forced; a report keeps the two apart.
"""

from __future__ import annotations

import random

from jumpforward.grammar.bytewise import ByteWalker
from jumpforward.grammar.spec import Grammar

_SOFT_BYTES = 160  # from here on a document only wants to end
_MAX_BYTES = 2000
_MAX_TRIES = 8
_CLOSING = frozenset(b'"}]')
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_MANY_BYTES = 64  # with more of them live, a place is free text, and letters will do
_P_CLOSE = 0.3  # of an open string, list or object that may end, at each byte
_P_END = 0.5  # of an output that may end


def sampled(grammar: Grammar, num_documents: int, seed: str) -> list[bytes]:
    """Return documents that the grammar accepts, without repetitions; fewer where tries run out."""
    found: dict[bytes, None] = {}
    for turn in range(num_documents * _MAX_TRIES):
        if len(found) == num_documents:
            break
        document = _walk(grammar.walker(), random.Random(f"{seed}/{turn}"))
        if document is not None:
            found[document] = None
    return list(found)


def _walk(walker: ByteWalker, draw: random.Random) -> bytes | None:
    """Return one document; None where it grows too long, or leads to a place that nothing leaves."""
    document = b""
    while len(document) < _MAX_BYTES:
        forced = walker.forced_bytes()
        walker.consume(forced)
        document += forced
        live = walker.live_bytes()
        if walker.is_accepting and (not live or len(document) >= _SOFT_BYTES or draw.random() < _P_END):
            return document if _is_text(document) else None
        if not live:
            return None
        step = bytes([_drawn(live, len(document) >= _SOFT_BYTES, draw)])
        walker.consume(step)
        document += step
    return None


def _drawn(live: bytes, wants_end: bool, draw: random.Random) -> int:
    closing = [byte for byte in live if byte in _CLOSING]
    # A quote beside few other bytes begins a string or a key, and ends none.
    may_close = closing and (len(live) > len(_CLOSING) or closing != [ord('"')])
    if may_close and (wants_end or draw.random() < _P_CLOSE):
        return draw.choice(closing)
    plain = [byte for byte in live if byte in _LETTERS] if len(live) > _MANY_BYTES else []
    return draw.choice(plain or list(live))


def _is_text(document: bytes) -> bool:
    try:
        document.decode()
    except UnicodeDecodeError:
        return False
    return True
