"""A walked document as text in parts, for showing what was forced in it."""

from __future__ import annotations

from itertools import accumulate, groupby, pairwise

from jumpforward.report.overlay import Tokens
from jumpforward.report.results import Annotated
from jumpforward.report.walk import Walk

_MAX_CHARS = 2500  # of a document that is shown
_MANY = 65  # bytes; as many or more are free text, and shown as one part however their number moves


def annotated(found: Walk, tokens: Tokens | None) -> Annotated:
    """Return a document's parts, and where the tokens of it begin."""
    text = found.data.decode()[:_MAX_CHARS]
    starts = [0, *accumulate(len(char.encode()) for char in text)]
    choices = {choice.place: choice for choice in found.choices}
    labels: list[tuple[str, int]] = []
    for start, end in pairwise(starts):
        choice = next((choices[place] for place in range(start, end) if place in choices), None)
        labels.append(("", 0) if choice is None else (str(choice.stop), len(choice.live)))
    runs = groupby(labels, lambda label: (label[0], min(label[1], _MANY)))
    members = [list(run) for _, run in runs]
    segments = [(len(run), run[0][0], max(live for _, live in run)) for run in members]
    return Annotated(text=text, segments=segments, tokens=_token_starts(found.data, starts, tokens))


def _token_starts(data: bytes, starts: list[int], tokens: Tokens | None) -> list[int]:
    lengths = tokens.lengths(data) if tokens is not None else []
    chars = {start: index for index, start in enumerate(starts[:-1])}
    return [chars[start] for start in accumulate(lengths[:-1], initial=0) if start in chars] if lengths else []
