"""Results of runs: what really happened, and the documents that came out, in the place of a corpus's instances."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from jumpforward.errors import OptionError
from jumpforward.report.corpus import Row
from jumpforward.report.counts import RunCounts, RunTotals
from jumpforward.report.table import Table, percent
from jumpforward.report.totals import Totals

_WANTED = "records as `jumpforward generate --output json` prints them, one a line"


class Runs:
    """A file of records. Holds sums and the places of lines in memory.

    Attributes:
        totals: what happened in the runs.
        fingerprint: names the file's content; empty without a file.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Read the file once.

        Raises:
            OptionError: it cannot be read, or a line is no record.
        """
        self._path = path
        self._places: dict[str, list[int]] = {}  # of complete records, by id; the empty id for those without one
        self.totals = RunTotals()
        digest = hashlib.sha256()
        for place, line in self._lines():
            digest.update(line)
            self._take(place, line)
        self._unmatched = {name: len(places) for name, places in self._places.items()}
        self.fingerprint = digest.hexdigest()[:16] if path is not None else ""

    def instead_of_instances(self, row: Row, num_rows: int) -> Row:
        """Return the row with the complete texts of its runs, where it has some, in the place of its instances.

        Records name their row by ``id``; those without one belong to a corpus of a single schema.
        """
        places = [*self._places.get(row.id, ()), *(self._places.get("", ()) if num_rows == 1 else ())]
        if self._path is None or not places:
            return row
        with self._path.open("rb") as file:
            texts = [_text_at(file, place) for place in places]
        return row.model_copy(update={"instances": [], "texts": texts})

    def seen(self, row_id: str, num_rows: int) -> None:
        """Take a row of the corpus off what is unmatched."""
        for name in (row_id, *([""] if num_rows == 1 else [])):
            self._unmatched.pop(name, None)
        self.totals = self.totals.model_copy(update={"num_unmatched": sum(self._unmatched.values())})

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        if self._path is None:
            return
        try:
            with self._path.open("rb") as file:
                place = 0
                for line in file:
                    if line.strip():
                        yield place, line
                    place += len(line)
        except OSError as error:
            raise OptionError("--from-results", str(self._path), f"a file that can be read ({error})") from error

    def _take(self, place: int, line: bytes) -> None:
        try:
            record: Any = json.loads(line)
            stats, complete = record["stats"], record["complete"]
            numbers = {name: value for name, value in stats.items() if name.startswith("num_")}
            counts = RunCounts(
                num_records=1,
                num_complete=int(complete),
                numbers=numbers,
                chunk_lengths=stats["chunk_lengths"],
            )
            name, policy = str(record.get("id") or ""), stats["policy"]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OptionError("--from-results", str(self._path), f"{_WANTED}; byte {place}: {error!r}") from error
        self.totals += RunTotals(num_records=1, policies={policy: counts})
        if complete:
            self._places.setdefault(name, []).append(place)


def _text_at(file: BinaryIO, place: int) -> str:
    file.seek(place)
    return str(json.loads(file.readline())["text"])


def runs_table(runs: RunTotals, totals: Totals) -> Table:
    """Return what happened, beside what was predicted for the same documents."""
    table = Table(
        "What runs did",
        ("policy", "runs", "complete", "output tokens", "sampled", "forced", "drafted", "drafts rejected",
         "passes by masked's", "predicted"),
        "Masked takes one pass an output token. Predicted: for the complete outputs, in their canonical tokens, from "
        "all drafts confirmed to none, under the first setting and the first tokenizer.",
    )  # fmt: skip
    for policy, counts in runs.policies.items():
        numbers = counts.numbers
        num_tokens = max(1, numbers.get("num_output_tokens", 0))
        shares = [percent(numbers.get(f"num_{kind}", 0) / num_tokens) for kind in ("sampled", "forced", "drafted")]
        rejected = percent(numbers.get("num_rejected", 0) / max(1, numbers.get("num_proposed", 0)))
        passes = percent(numbers.get("num_forward_passes", 0) / num_tokens)
        cells = [policy, str(counts.num_records), str(counts.num_complete), str(num_tokens), *shares]
        table.rows.append([*cells, rejected, passes, _predicted(totals, policy)])
    return table


def _predicted(totals: Totals, policy: str) -> str:
    tally = next((tally for documents, _, tally in totals.whole() if documents == "results"), None)
    counts = next(iter(tally.tokens.values()), None) if tally is not None else None
    if counts is None or policy not in ("exact", "canonical"):
        return "100.0 %" if policy == "masked" else "-"
    fewest, most = (percent(counts.share_of_passes(f"{policy}_{bound}")) for bound in ("fewest", "most"))
    return f"{fewest} - {most}"
