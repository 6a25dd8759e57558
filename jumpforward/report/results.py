"""What a report says of one schema; a line of its partial results, and an item of its JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel

from jumpforward.report.counts import Tally
from jumpforward.report.settings import Setting

Documents = Literal["real", "sampled", "results"]


class Note(BaseModel):
    """A document that a grammar does not accept as it is.

    Attributes:
        document: its index among the schema's.
        outcome: ``reordered`` for one that is accepted with its keys in the schema's order, else ``rejected``.
        place: the index of the first byte that is not legal, in the text with the keys in the schema's order where
            that goes further.
        num_bytes: bytes of that text.
        came: the text from that byte on, cut after a few characters; empty where it ended too early.
        expected: the bytes that were legal, as a class in the notation of regular expressions.
    """

    document: int
    outcome: Literal["reordered", "rejected"]
    place: int
    num_bytes: int
    came: str
    expected: str


class Annotated(BaseModel):
    """A document and what was forced in it, for showing.

    Attributes:
        text: the document.
        segments: its parts in order, as (characters, reason, live): reason is empty for forced text, else why
            forcing stopped in front of the part; live is the most bytes that were legal at a place in it.
        tokens: where the first tokenizer's tokens begin, in characters; empty where there are none.
    """

    text: str
    segments: list[tuple[int, str, int]]
    tokens: list[int] = []


class SettingResult(BaseModel):
    """A schema under one setting.

    Attributes:
        setting: the setting.
        failure: why there is no grammar; None where there is one.
        warnings: what the grammar permits beyond the schema, as its warnings say.
        tally: the figures.
        notes: documents that the grammar does not accept as they are.
        annotated: the first accepted document.
    """

    setting: Setting
    failure: str | None = None
    warnings: list[str] = []
    tally: Tally = Tally()
    notes: list[Note] = []
    annotated: Annotated | None = None


class SchemaResult(BaseModel):
    """A schema under all settings.

    Attributes:
        index: its place in the corpus.
        id: its name.
        group: what it is pooled with.
        documents: where its documents come from: the corpus, a random walk, or results of runs.
        num_documents: how many there are.
        problem: why nothing could be said of it: no schema, a time limit, a process that ended, no document.
        settings: the results by setting.
    """

    index: int
    id: str
    group: str = ""
    documents: Documents = "real"
    num_documents: int = 0
    problem: str | None = None
    settings: list[SettingResult] = []

    def shown(self) -> Iterator[tuple[str, Annotated]]:
        """Yield the annotated documents of the first strictness, one a whitespace policy, with the setting's name."""
        for one in self.settings:
            if one.annotated is not None and one.setting.strictness == self.settings[0].setting.strictness:
                yield one.setting.name, one.annotated
