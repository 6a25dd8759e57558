"""The tables of a report, for the terminal and for HTML alike: titles, notes and cells as text."""

from __future__ import annotations

from collections.abc import Iterator

from jumpforward.report.chunk_cost import ChunkCost
from jumpforward.report.counts import ByteCounts, Tally, TokenCounts, quantile
from jumpforward.report.published import published_table
from jumpforward.report.table import Table, percent, short
from jumpforward.report.totals import ALL, Totals

_SOURCE = {
    "real": "the corpus",
    "sampled": "a random walk",
    "results": "results of runs",
}


def tables(totals: Totals, curve: ChunkCost | None) -> list[Table]:
    """Return all tables that have rows."""
    found = [
        documents_table(totals),
        shares_table(totals),
        passes_table(totals, curve),
        stops_table(totals),
        gains_table(totals),
        groups_table(totals),
        published_table(totals),
    ]
    return [table for table in found if table.rows]


def documents_table(totals: Totals) -> Table:
    """Return what became of the documents."""
    table = Table(
        "Documents",
        ("documents from", "setting", "schemas with grammar", "without", "documents of these", "accepted",
         "of these reordered", "rejected"),
        "Reordered documents are accepted only with their keys in the schema's order. Sampled documents stand for "
        "schemas without instances: a random walk through the strict grammar, by bytes, that draws ends with "
        "preference, so that they are shorter and simpler than real ones.",
    )  # fmt: skip
    for documents, name, tally in totals.whole():
        cells = (tally.num_schemas, tally.num_failed, tally.num_unwalked, tally.num_accepted, tally.num_reordered,
                 tally.num_rejected)  # fmt: skip
        table.rows.append([_SOURCE[documents], name, *map(str, cells)])
    return table


def shares_table(totals: Totals) -> Table:
    """Return how much is forced, in bytes and in tokens."""
    table = Table(
        "How much is forced",
        ("documents from", "setting", "tokenizer", "bytes", "tokens", "tokens, median document", "stable tokens",
         "withheld tails", "straddling", "choices a document"),
        "Shares are pooled over all documents. Tokens: canonical tokens of the document that lie inside forced text, "
        "the upper bound of what forcing can save. Stable: of all tokens, those that can be written without asking a "
        "model. Withheld tails: forced runs, of those with a token border in them, whose last tokens something could "
        "still change. Straddling: tokens that begin in forced text and end behind it.",
    )  # fmt: skip
    for documents, name, tokenizer, tally, counts in _by_tokenizer(totals):
        table.rows.append([
            _SOURCE[documents], name, short(tokenizer),
            percent(tally.bytes.share_forced),
            percent(counts.share_forced),
            f"{quantile(counts.shares, 0.5)} %",
            percent(counts.share_stable),
            percent(counts.num_withheld_tails / max(1, counts.num_asked)),
            percent(counts.num_straddling / max(1, counts.num_tokens)),
            f"{tally.bytes.num_choices / max(1, tally.bytes.num_documents):.1f}",
        ])  # fmt: skip
    return table


def passes_table(totals: Totals, curve: ChunkCost | None) -> Table:
    """Return the forward passes that are predicted, and what they come to by a cost curve."""
    columns = ["documents from", "setting", "tokenizer", "masked", "exact", "canonical"]
    note = (
        "For a model that writes the document in its canonical tokens; as shares of the passes of masked, from all "
        "drafts confirmed to none."
    )
    if curve is not None:
        columns += ["speedup, exact", "break-even, exact", "speedup, canonical", "break-even, canonical"]
        points = ", ".join(f"{length}: {spent:.4g}" for length, spent in curve.points)
        note += (
            f" Speedups by the time of a chunk ({curve.source}; {points}). Break-even: the share of drafts that must "
            "be confirmed so that the policy is no slower than masked."
        )
    table = Table("Forward passes predicted", tuple(columns), note)
    for documents, name, tokenizer, _, counts in _by_tokenizer(totals):
        row = [_SOURCE[documents], name, short(tokenizer), str(counts.passes.get("masked", 0))]
        row += [_range(counts, policy) for policy in ("exact", "canonical")]
        table.rows.append(row + (_paying(totals, curve, documents, name, tokenizer) if curve is not None else []))
    return table


def stops_table(totals: Totals) -> Table:
    """Return why forcing stops."""
    table = Table(
        "Why forcing stops",
        ("documents from", "setting", "branch, 2-8 bytes", "branch, 9-64", "free text, 65+", "recursion", "accepting",
         "whitespace", "withheld tails"),
        "Every byte that was not forced, by the reason why forcing had stopped in front of it, and by how many bytes "
        "were legal there. Recursion: a branch that comes again with every repeated or nested part. In tokens forcing "
        "can stop earlier still: withheld tails are forced runs whose last tokens something could change, for the "
        "first tokenizer.",
    )  # fmt: skip
    for documents, name, tally in totals.whole():
        counts = tally.bytes
        cells = [*_branches(counts), *(counts.stops.get(stop, 0) for stop in ("recursion", "accepting", "whitespace"))]
        first = next(iter(tally.tokens.values()), TokenCounts())
        table.rows.append([_SOURCE[documents], name, *map(str, cells), str(first.num_withheld_tails)])
    return table


def gains_table(totals: Totals) -> Table:
    """Return what changes of the grammar would buy."""
    table = Table(
        "What a change would buy",
        ("documents from", "setting", "change", "documents", "lost", "bytes forced", "tokenizer", "tokens forced",
         "passes of exact"),
        "The same documents, walked through the changed grammar. Lost: documents that it no longer accepts; they are "
        "in no other number. For declared order, which is how grammars are made here, the first number is that of a "
        "grammar with keys in any order; it forgets which keys have come, so that the gain is an upper bound. "
        "Passes: with all drafts confirmed. The other tokenizers are in the JSON.",
    )  # fmt: skip
    for documents, name, tally in totals.whole():
        for change, gain in tally.gains.items():
            num_bytes = max(1, gain.num_bytes)
            before = [_SOURCE[documents], name, change, str(gain.num_documents), str(gain.num_lost)]
            before.append(_from_to(gain.num_forced_before / num_bytes, gain.num_forced_after / num_bytes))
            for tokenizer, tokens in list(gain.tokens.items())[:1]:
                num_tokens = max(1, tokens.num_tokens)
                forced = _from_to(tokens.num_forced_before / num_tokens, tokens.num_forced_after / num_tokens)
                passes = f"{100 * (tokens.passes_after / max(1, tokens.passes_before) - 1):+.1f} %"
                table.rows.append([*before, short(tokenizer), forced, passes])
    return table


def groups_table(totals: Totals) -> Table:
    """Return the forced shares by group, for the first tokenizer."""
    first = next((tokenizer for *_, tokenizer, _, _ in _by_tokenizer(totals)), None)
    names = list(dict.fromkeys(name for _, name, _ in totals.whole()))
    title = f"By group: tokens forced, {short(first)}; bytes forced" if first else "By group: bytes forced"
    table = Table(title, ("documents from", "group", "documents", *names), "Tokens, then bytes, in per cent, pooled.")
    for documents, groups in totals.tallies.items():
        for group in [*totals.groups(), ALL]:
            if group in groups and totals.groups():
                found = groups[group]
                num_documents = max(tally.num_accepted for tally in found.values())
                cells = [_pair(found.get(name, Tally()), first) for name in names]
                table.rows.append([_SOURCE[documents], group or "all", str(num_documents), *cells])
    return table


def _by_tokenizer(totals: Totals) -> Iterator[tuple[str, str, str, Tally, TokenCounts]]:
    for documents, name, tally in totals.whole():
        for tokenizer, counts in tally.tokens.items():
            if counts.num_documents:
                yield documents, name, tokenizer, tally, counts


def _branches(counts: ByteCounts) -> list[int]:
    bounds = ((0, 8), (9, 64), (65, 256))
    return [sum(count for live, count in counts.live.items() if low <= live <= high) for low, high in bounds]


def _range(counts: TokenCounts, policy: str) -> str:
    fewest, most = (100 * counts.share_of_passes(f"{policy}_{bound}") for bound in ("fewest", "most"))
    return f"{fewest:.1f} - {most:.1f} %"


def _paying(totals: Totals, curve: ChunkCost, documents: str, name: str, tokenizer: str) -> list[str]:
    found = totals.payoffs(curve)[documents][name][tokenizer]
    cells = []
    for policy in ("exact", "canonical"):
        slow, fast = (found.speedups.get(f"{policy}_{bound}", 1.0) for bound in ("most", "fewest"))
        share = found.break_even[policy]
        cells += [f"{slow:.2f} - {fast:.2f}", "never" if share is None else percent(share)]
    return cells


def _from_to(before: float, after: float) -> str:
    return f"{100 * before:.1f} → {100 * after:.1f} %"


def _pair(tally: Tally, tokenizer: str | None) -> str:
    in_bytes = f"{100 * tally.bytes.share_forced:.1f}"
    if tokenizer is None:
        return in_bytes
    return f"{100 * tally.tokens.get(tokenizer, TokenCounts()).share_forced:.1f} / {in_bytes}"
