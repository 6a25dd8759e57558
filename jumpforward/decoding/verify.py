"""Verification: a draft and the model's choices to the tokens that are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jumpforward.decoding.drafts import Draft
from jumpforward.stats import Counters, Provenance


class Kept(NamedTuple):
    """A token that joins the output. ``token`` is None where the model's logits permitted no legal one.

    ``source`` is the name of the source of a draft token.
    """

    token: int | None
    provenance: Provenance
    source: str | None = None


def verify(draft: Draft, choices: Mapping[int, int | None]) -> list[Kept]:
    """Return the tokens that ordinary decoding would have made, as far as the draft tells.

    ``choices`` gives the model's choice, under the mask and the position's own random number, for every open row.
    The draft is a guess of one token a position, so a draft token is kept exactly when it is the choice; the first
    choice that differs is kept in its place and ends the run, as it does in ordinary decoding.
    """
    kept: list[Kept] = []
    for row, (token, claim) in enumerate(zip(draft.tokens, draft.claims, strict=True)):
        if claim is None:
            kept.append(Kept(token, Provenance.FORCED))
        elif choices[row] == token:
            kept.append(Kept(token, Provenance.DRAFTED, claim.source))
        else:
            kept.append(Kept(choices[row], Provenance.SAMPLED))
            return kept
    if draft.has_next:
        kept.append(Kept(choices[len(draft.tokens)], Provenance.SAMPLED))
    return kept


def count(draft: Draft, kept: Sequence[Kept], counters: Counters) -> None:
    """Enter into an account what became of a draft, of which ``kept`` joined the output."""
    for row, claim in enumerate(draft.claims):
        if claim is None:
            continue
        source = counters.sources[claim.source]
        if row < len(kept) and kept[row].source is not None:
            source.num_accepted += 1
            source.num_passes_saved += 1
        else:
            source.num_rejected += 1
    drafted = [each.source for each in kept if each.source is not None]
    if drafted and all(each.provenance is not Provenance.SAMPLED for each in kept):
        counters.sources[drafted[-1]].num_passes_saved -= 1  # it has the pass to itself
