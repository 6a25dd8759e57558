"""The figures of a whole corpus: those of its schemas, added up one by one."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from jumpforward.report.chunk_cost import ChunkCost, Payoff, payoff
from jumpforward.report.counts import Tally
from jumpforward.report.results import Documents, SchemaResult

ALL = ""  # the group of everything


class Totals(BaseModel):
    """A corpus in sums; it does not grow with the corpus, save by its groups.

    Attributes:
        num_schemas: schemas.
        num_problems: of these, those of which nothing could be said.
        tallies: figures by source of the documents, group (the empty one is all of them), and name of the setting.
    """

    num_schemas: int = 0
    num_problems: int = 0
    tallies: dict[Documents, dict[str, dict[str, Tally]]] = {}

    def add(self, result: SchemaResult) -> None:
        """Add a schema."""
        self.num_schemas += 1
        self.num_problems += result.problem is not None
        groups = self.tallies.setdefault(result.documents, {}) if result.settings else {}
        for group in dict.fromkeys((ALL, result.group)):
            for setting in result.settings:
                before = groups.setdefault(group, {}).get(setting.setting.name, Tally())
                groups[group][setting.setting.name] = before + setting.tally

    def whole(self) -> Iterator[tuple[Documents, str, Tally]]:
        """Yield the figures of all groups together: the source, the setting's name, the figures."""
        for documents, groups in self.tallies.items():
            for name, tally in groups[ALL].items():
                yield documents, name, tally

    def groups(self) -> list[str]:
        """Return the names of the groups in alphabetical order, without the empty one."""
        return sorted({group for groups in self.tallies.values() for group in groups} - {ALL})

    def payoffs(self, curve: ChunkCost) -> dict[str, dict[str, dict[str, Payoff]]]:
        """Return what forcing saves by a cost curve: by source, setting and tokenizer."""
        found: dict[str, dict[str, dict[str, Payoff]]] = {}
        for documents, name, tally in self.whole():
            of_tokenizers = {tokenizer: payoff(counts, curve) for tokenizer, counts in tally.tokens.items()}
            found.setdefault(documents, {})[name] = of_tokenizers
        return found
