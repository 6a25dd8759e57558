"""The figures of a report: counts that add up, over documents, schemas and groups.

Everything is a sum, so that the figures of a corpus are those of its rows added up, in any order. Shares and means are
properties, worked out from sums.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

POLICY_BOUNDS = ("masked", "canonical_fewest", "canonical_most", "exact_fewest", "exact_most")


class Counts(BaseModel):
    """A record of numbers and of dictionaries of numbers; ``+`` adds field by field."""

    model_config = ConfigDict(extra="forbid")

    def __add__(self, other: Self) -> Self:
        mine, others = dict(self), dict(other)
        return type(self).model_construct(**{name: _sum(mine[name], others[name]) for name in mine})


def _sum(left: Any, right: Any) -> Any:
    if isinstance(left, dict):
        keys = dict.fromkeys([*left, *right])
        return {key: _sum(left[key], right[key]) if key in left and key in right else left.get(key, right.get(key))
                for key in keys}  # fmt: skip
    return left + right


def quantile(histogram: dict[int, int], share: float) -> int:
    """Return the least value that at least this share of a histogram, {value: count}, does not exceed; 0 if empty."""
    wanted = share * sum(histogram.values())
    seen = 0
    for value, count in sorted(histogram.items()):
        seen += count
        if seen >= wanted:
            return value
    return 0


class ByteCounts(Counts):
    """What the bytes of accepted documents say; no tokenizer is in it.

    Attributes:
        num_documents: documents walked to their ends.
        num_bytes: their bytes.
        num_forced_bytes: of these, forced.
        num_runs: maximal runs of forced bytes.
        num_choices: bytes that were not forced: ``num_bytes - num_forced_bytes``.
        stops: choices by the reason why forcing had stopped in front of them: ``branch``, ``accepting``,
            ``whitespace``, ``recursion`` (see :mod:`jumpforward.grammar.paths` and :class:`.walk.Choice`).
        live: choices with the reason ``branch``, as {number of bytes that were legal: choices}.
        run_lengths: {bytes: runs of that length}.
        shares: {per cent of a document's bytes that were forced, rounded down: documents}.
    """

    num_documents: int = 0
    num_bytes: int = 0
    num_forced_bytes: int = 0
    num_runs: int = 0
    num_choices: int = 0
    stops: dict[str, int] = {}
    live: dict[int, int] = {}
    run_lengths: dict[int, int] = {}
    shares: dict[int, int] = {}

    @property
    def share_forced(self) -> float:
        """Forced bytes by bytes, pooled."""
        return self.num_forced_bytes / max(1, self.num_bytes)


class TokenCounts(Counts):
    """What one tokenizer's canonical tokens of the same documents say.

    Attributes:
        num_documents: documents with canonical tokens.
        num_lossy_documents: documents without: the tokenizer changes their text. They are in no other number here.
        num_tokens: canonical tokens, no end token among them.
        num_forced_tokens: of these, those that consist of forced bytes: the upper bound of what forcing can save.
        num_straddling: of the rest, those that hold the last byte of a forced run and the byte behind it.
        num_seams: of the rest, those that hold the first byte of a forced run and the byte before it.
        num_asked: forced runs that were spelled in tokens, from the first token border in them.
        num_stable: tokens of these spellings that no continuation can change.
        num_withheld: tokens of these spellings that one could.
        num_withheld_unknown: of these, where not enough is known of the tokenizer to say which could.
        num_withheld_tails: spellings with withheld tokens: forcing in tokens stops there before it does in bytes.
        num_spelled_otherwise: stable tokens that are not the document's own; 0 for a tokenizer whose rule is known.
        run_lengths: {forced tokens in a run: forced runs}.
        shares: {per cent of a document's tokens that are forced, rounded down: documents}.
        passes: forward passes predicted, by policy and bound (:mod:`jumpforward.report.passes`).
        chunks: the same passes as {policy and bound: {tokens fed: passes}}; the prompt's tokens count as one.
    """

    num_documents: int = 0
    num_lossy_documents: int = 0
    num_tokens: int = 0
    num_forced_tokens: int = 0
    num_straddling: int = 0
    num_seams: int = 0
    num_asked: int = 0
    num_stable: int = 0
    num_withheld: int = 0
    num_withheld_unknown: int = 0
    num_withheld_tails: int = 0
    num_spelled_otherwise: int = 0
    run_lengths: dict[int, int] = {}
    shares: dict[int, int] = {}
    passes: dict[str, int] = {}
    chunks: dict[str, dict[int, int]] = {}

    @property
    def share_forced(self) -> float:
        """Forced tokens by tokens, pooled: the upper bound."""
        return self.num_forced_tokens / max(1, self.num_tokens)

    @property
    def share_stable(self) -> float:
        """Stable tokens by tokens, pooled: what can be written without asking a model."""
        return self.num_stable / max(1, self.num_tokens)

    def share_of_passes(self, bound: str) -> float:
        """Return the passes of a policy's bound as a share of those of ``masked``."""
        return self.passes.get(bound, 0) / max(1, self.passes.get("masked", 0))


class TokenGain(Counts):
    """What a change does to one tokenizer's figures, over the documents that are legal with and without it."""

    num_tokens: int = 0
    num_forced_before: int = 0
    num_forced_after: int = 0
    passes_before: int = 0
    passes_after: int = 0


class Gain(Counts):
    """What a change of the grammar does, found by walking the same documents again.

    Attributes:
        num_documents: documents that are legal with and without the change; all other numbers are theirs.
        num_lost: documents that the change makes illegal.
        num_bytes: bytes of the documents.
        num_forced_before: of these, forced without the change.
        num_forced_after: of these, forced with it.
        tokens: the same by tokenizer, and the fewest passes of ``exact``.
    """

    num_documents: int = 0
    num_lost: int = 0
    num_bytes: int = 0
    num_forced_before: int = 0
    num_forced_after: int = 0
    tokens: dict[str, TokenGain] = {}


class Tally(Counts):
    """Documents under one setting of the grammar.

    Attributes:
        num_schemas: schemas with a grammar.
        num_failed: schemas without: their grammar does not compile.
        num_unwalked: documents of those schemas.
        num_accepted: documents that the grammar accepts; in ``bytes`` and, but for lossy ones, in ``tokens``.
        num_reordered: of these, those that it accepts only with their keys in the schema's order.
        num_rejected: documents that it does not accept; in no other number.
        bytes: what their bytes say.
        tokens: what their tokens say, by tokenizer.
        gains: what a change of the grammar would do, by its name (:mod:`jumpforward.report.changes`).
    """

    num_schemas: int = 0
    num_failed: int = 0
    num_unwalked: int = 0
    num_accepted: int = 0
    num_reordered: int = 0
    num_rejected: int = 0
    bytes: ByteCounts = ByteCounts()
    tokens: dict[str, TokenCounts] = {}
    gains: dict[str, Gain] = {}


class SourceCounts(Counts):
    """What a source of drafts did: the counts of :class:`jumpforward.SourceStats`."""

    num_proposed: int = 0
    num_accepted: int = 0
    num_rejected: int = 0
    num_passes_saved: int = 0


class RunCounts(Counts):
    """Runs of one policy.

    Attributes:
        num_records: runs.
        num_complete: of these, with a complete output.
        numbers: the sums of all counts in the runs' statistics (:class:`jumpforward.Stats`), by their names there.
        chunk_lengths: {tokens fed: passes}, the prompt's passes among them.
        sources: figures by source of drafts.
    """

    num_records: int = 0
    num_complete: int = 0
    numbers: dict[str, int] = {}
    chunk_lengths: dict[int, int] = {}
    sources: dict[str, SourceCounts] = {}


class RunTotals(Counts):
    """All runs of a file.

    Attributes:
        num_records: runs.
        num_errors: records of requests that failed, which are no runs.
        num_unmatched: complete runs whose ``id`` names no schema of the corpus.
        policies: figures by policy.
    """

    num_records: int = 0
    num_errors: int = 0
    num_unmatched: int = 0
    policies: dict[str, RunCounts] = {}


def histogram(values: Any) -> dict[int, int]:
    """Return {value: count} in ascending order."""
    return dict(sorted(Counter(values).items()))
