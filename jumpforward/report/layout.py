"""The JSON of a report: one object, written schema by schema, whole or not at all.

    {
      "format": "jumpforward.report", "version": 1, "jumpforward": "0.1.0",
      "corpus": "name of the file or folder",
      "options": report.settings.Options,
      "totals": report.totals.Totals,           figures of all schemas; see report.counts for every number
      "chunk_cost": report.chunk_cost.ChunkCost or null,
      "payoffs": {source: {setting: {tokenizer: report.chunk_cost.Payoff}}} or null,
      "runs": report.runs.RunTotals or null,    what really happened, with --from-results
      "schemas": [report.results.SchemaResult]  in the order of the corpus
    }

Numbers are sums, so that parts can be added up; keys of histograms are numbers written as text. ``version`` goes up
when a field changes its meaning or goes away; a new field leaves it as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel

import jumpforward
from jumpforward.report.results import SchemaResult

FORMAT = "jumpforward.report"
VERSION = 1


def write_json(path: Path, parts: dict[str, BaseModel | Any], results: Iterable[SchemaResult]) -> None:
    """Write a report; ``parts`` is everything between the version and the schemas."""
    head = {"format": FORMAT, "version": VERSION, "jumpforward": jumpforward.__version__}
    with written_whole(path) as file:
        file.write("{\n")
        for name, part in (head | parts).items():
            file.write(f"{json.dumps(name)}: {_json(part)},\n")
        file.write('"schemas": [')
        for index, result in enumerate(results):
            file.write((",\n" if index else "\n") + result.model_dump_json())
        file.write("\n]}\n")


@contextmanager
def written_whole(path: Path) -> Iterator[IO[str]]:
    """Open a file for writing that takes the place of ``path`` only when all of it is there."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _json(part: BaseModel | Any) -> str:
    if isinstance(part, BaseModel):
        return part.model_dump_json()
    return json.dumps(part, ensure_ascii=False, default=lambda value: value.model_dump(mode="json"))
