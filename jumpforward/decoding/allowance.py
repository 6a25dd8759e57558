"""When a slow source of drafts is asked.

A source that takes about as long as a pass can cost more than it saves, where others of them cost rows at most. It is
asked where its token is likely to save more seconds than it takes, by how often it has been right so far. And it may
spend what it has saved, and a hundredth of the time beside. So where an estimate is wrong, or a prompt that it has to
read is long and the output short, it falls silent all the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock

from jumpforward.decoding.drafter import Stake

_PRIOR, _PRIOR_WEIGHT = 0.7, 4.0  # of being right, in tokens
_KEEP = 1 - 1 / 64  # of what is known of earlier tokens, a token
_KEEP_SILENT = 0.99  # of what is known, a place at which it is not asked
_FREE_SHARE = 0.01  # of the time that it may take without saving any
_TRY_AGAIN = 256  # places at which it is not asked before it is tried once more


@dataclass
class _Record:
    num_right: float = 0.0
    num_tried: float = 0.0
    num_silent: int = 0  # places in a row

    @property
    def expected(self) -> float:
        return (self.num_right + _PRIOR * _PRIOR_WEIGHT) / (self.num_tried + _PRIOR_WEIGHT)

    def decay(self, keep: float) -> None:
        self.num_right *= keep
        self.num_tried *= keep


class Allowance:
    """What one slow source may spend, and what its tokens have been worth. Shared by threads."""

    def __init__(self, start_s: float) -> None:
        """Begin with an allowance of so many seconds. It never grows beyond that."""
        self._most_s = self._left_s = start_s
        self._records: defaultdict[Hashable, _Record] = defaultdict(_Record)
        self._lock = Lock()

    def permits(self, stake: Stake, price_s: float, setting: Hashable) -> bool:
        """Return whether to ask for a token that takes so many seconds; what is known is apart by ``setting``."""
        with self._lock:
            record = self._records[setting]
            pays = stake.gain_s(record.expected) >= price_s or record.num_silent >= _TRY_AGAIN
            if pays and self._left_s >= 0:
                record.num_silent = 0
                return True
            record.num_silent += 1
            record.decay(_KEEP_SILENT)
            return False

    def spend(self, seconds: float) -> None:
        """Hear what asking took."""
        with self._lock:
            self._left_s -= seconds

    def learn(self, stake: Stake, setting: Hashable, *, is_drafted: bool, is_right: bool) -> None:
        """Hear what became of a token, at a place that the output reached."""
        with self._lock:
            record = self._records[setting]
            record.decay(_KEEP)
            record.num_right += is_drafted and is_right
            record.num_tried += 1
            if is_drafted:
                self._earn(stake._replace(reach=1.0).gain_s(float(is_right)))

    def grow(self, seconds: float) -> None:
        """Hear how much time went by, of which a little is free."""
        with self._lock:
            self._earn(_FREE_SHARE * seconds)

    def _earn(self, seconds: float) -> None:
        self._left_s = min(self._most_s, self._left_s + seconds)
