"""How long a draft may be: as long as another row is likely to save more than it costs.

A row that is reached and right with probability p makes p tokens for the price of a row. A pass makes T tokens for
the price of a pass and R rows. So a row pays where ``p >= row_s * T / (pass_s + row_s * R)``: the *bar*. T and R are
running means, p is the product of what the sources' bids have turned out to be worth, and the prices are measured.
What slow sources take belongs to the price of a pass.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

from jumpforward.decoding.costs import PassCosts
from jumpforward.decoding.sampling import SamplingOptions

MAX_GUESSES = 32  # rows of a draft that are not forced text; half as many cost extraction 1 % more passes

_NUM_BINS = 8
_PRIOR_WEIGHT = 4.0  # of a bid's own confidence, in tokens
_MEMORY = 64.0  # tokens of a source after which an older one counts for little
_REFUSED_DECAY = 0.99  # of what is known of bids that are refused, so that they are tried again some day
_MEAN_DECAY = 0.9  # of the running means, a pass
_MAX_SETTINGS = 64


class Claim(NamedTuple):
    """What a source said of a token: those who say the same are judged together."""

    source: str
    kind: str  # of its bid
    is_first: bool  # token of its bid; the later tokens of a word or a key are surer
    bin: int
    confidence: float

    @classmethod
    def of(cls, source: str, is_first: bool, confidence: float, kind: str = "") -> Claim:
        """Return the claim of a bid's token."""
        confidence = min(max(confidence, 0.01), 0.99)
        return cls(source, kind, is_first, int(confidence * _NUM_BINS), confidence)

    @property
    def key(self) -> tuple[str, str, bool, int]:
        """What it is judged by."""
        return self[:4]


@dataclass
class _Record:
    num_right: float = 0.0
    num_tried: float = 0.0


class Pace:
    """What drafts have been worth under one sampling setting. Shared by threads.

    Attributes:
        costs: what passes cost.
    """

    def __init__(self, costs: PassCosts) -> None:
        self.costs = costs
        self._records: defaultdict[tuple[str, str, bool, int], _Record] = defaultdict(_Record)
        self._lock = Lock()
        self._tokens_per_pass = 2.0
        self._rows_per_pass = 4.0
        self._spent_s_per_pass = 0.0

    def bar(self, num_sharing: int) -> float:
        """Return the least probability at which a row pays, where so many requests share a pass."""
        return self.costs.now.row_s / self.token_s(num_sharing)

    def token_s(self, num_sharing: int) -> float:
        """Return what a token costs on the average, in seconds, where so many requests share a pass."""
        cost = self.costs.now
        whole_s = cost.pass_s / num_sharing + cost.row_s * self._rows_per_pass + self._spent_s_per_pass
        return whole_s / self._tokens_per_pass

    def worth(self, claim: Claim) -> float:
        """Return how likely a token is for which a source makes this claim."""
        record = self._records.get(claim.key)
        if record is None:
            return claim.confidence
        return (record.num_right + _PRIOR_WEIGHT * claim.confidence) / (record.num_tried + _PRIOR_WEIGHT)

    def refuse(self, claim: Claim) -> None:
        """Hear that a token was not drafted, since it did not seem worth a row."""
        with self._lock:
            record = self._records[claim.key]
            record.num_right *= _REFUSED_DECAY
            record.num_tried *= _REFUSED_DECAY

    def learn(self, judged: Sequence[tuple[Claim, bool]], num_tokens: int, num_rows: int, spent_s: float = 0.0) -> None:
        """Hear which of the tokens that were reached were right, and what the pass made of how many rows.

        ``spent_s`` are the seconds that slow sources took for it.
        """
        with self._lock:
            for claim, is_right in judged:
                record = self._records[claim.key]
                keep = 1 - 1 / _MEMORY
                record.num_right = keep * record.num_right + is_right
                record.num_tried = keep * record.num_tried + 1
            if num_rows:
                self._tokens_per_pass += (1 - _MEAN_DECAY) * (num_tokens - self._tokens_per_pass)
                self._rows_per_pass += (1 - _MEAN_DECAY) * (num_rows - self._rows_per_pass)
                self._spent_s_per_pass += (1 - _MEAN_DECAY) * (spent_s - self._spent_s_per_pass)


class Paces:
    """The paces of an engine, one for each sampling setting."""

    def __init__(self, costs: PassCosts, *, shared: bool) -> None:
        """Without ``shared``, every request begins anew, and leaves no trace."""
        self.costs = costs
        self._shared = shared
        self._paces: OrderedDict[tuple[object, ...], Pace] = OrderedDict()
        self._lock = Lock()

    def of(self, sampling: SamplingOptions) -> Pace:
        """Return the pace of a request with these options."""
        if not self._shared:
            return Pace(self.costs)
        setting = (round(sampling.temperature, 1), sampling.top_k, sampling.top_p, sampling.min_p)
        with self._lock:
            pace = self._paces.pop(setting, None) or Pace(self.costs)
            self._paces[setting] = pace
            if len(self._paces) > _MAX_SETTINGS:
                self._paces.popitem(last=False)
        return pace
