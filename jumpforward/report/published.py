"""Published shares of forced tokens, beside those of the same schemas here, and why they differ."""

from __future__ import annotations

from jumpforward.report.counts import Tally, TokenCounts
from jumpforward.report.table import Table, short
from jumpforward.report.totals import ALL, Totals

# MaskBench's notes: llguidance, Llama 3's tokenizer; per cent of all tokens, flexible and compact whitespace.
_PUBLISHED = {ALL: (13, 15), "Glaiveai2K": (21, 25), "Kubernetes": (9, 10)}

_REASONS = (
    "Here: the upper bound, then stable tokens. Published: per cent of all tokens that llguidance wrote without a mask "
    "on the whole of MaskBench, Llama 3's tokenizer. Why the numbers here are others: (1) separators: fixed ', ' and "
    "': ' are forced, flexible ones are not; (2) strict mode: with no properties beyond the schema's, more of the next "
    "key is forced, while open objects follow the standard as llguidance does; (3) withheld tails: llguidance counts "
    "what it commits, and it withholds the last tokens of forced text that something could still change, while the "
    "upper bound counts every token inside forced text, which verified drafts can win back. Stable tokens leave such "
    "tails out too, by another rule. The tokenizer and the choice of schemas differ as well."
)


def published_table(totals: Totals) -> Table:
    """Return the comparison; without rows for a corpus that is not JSONSchemaBench."""
    groups = totals.tallies.get("real", {})
    names = list(groups.get(ALL, {}))
    first = next((tokenizer for tally in groups.get(ALL, {}).values() for tokenizer in tally.tokens), None)
    columns = ["group", "published, flexible", "published, compact", *names]
    title = f"Beside the published shares of forced tokens (here: {short(first)})" if first else ""
    table = Table(title, tuple(columns), _REASONS)
    if first is None or not set(_PUBLISHED) <= set(groups):
        return table
    for group, published in _PUBLISHED.items():
        row = [group or "all", *(f"{share} %" for share in published)]
        for name in names:
            counts = groups[group].get(name, Tally()).tokens.get(first, TokenCounts())
            row.append(f"{100 * counts.share_forced:.1f} / {100 * counts.share_stable:.1f} %")
        table.rows.append(row)
    return table
