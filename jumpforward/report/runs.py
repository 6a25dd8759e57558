"""Results of runs: what really happened, and the documents that came out, in the place of a corpus's instances."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from jumpforward.errors import OptionError
from jumpforward.report.corpus import Row
from jumpforward.report.counts import RunCounts, RunTotals, SourceCounts
from jumpforward.report.table import Table, percent
from jumpforward.report.totals import Totals

_WANTED = "records as `jumpforward generate --output json` and `jumpforward batch` write them, one a line"


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
            if "error" in record:  # of `jumpforward batch`: the line was no request, or the request failed
                self.totals += RunTotals(num_errors=1)
                return
            policy, counts = record["stats"]["policy"], _counts(record)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OptionError("--from-results", str(self._path), f"{_WANTED}; byte {place}: {error!r}") from error
        self.totals += RunTotals(num_records=1, policies={policy: counts})
        if record["complete"]:
            self._places.setdefault(str(record.get("id") or ""), []).append(place)


def _counts(record: dict[str, Any]) -> RunCounts:
    stats = record["stats"]
    return RunCounts(
        num_records=1,
        num_complete=int(record["complete"]),
        numbers=_numbers(stats),
        chunk_lengths=stats["chunk_lengths"],
        sources={name: SourceCounts(**_numbers(source)) for name, source in stats["sources"].items()},
    )


def _numbers(account: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in account.items() if name.startswith("num_")}


def _text_at(file: BinaryIO, place: int) -> str:
    file.seek(place)
    return str(json.loads(file.readline())["text"])


def runs_tables(runs: RunTotals, totals: Totals) -> list[Table]:
    """Return what happened in runs; none where there were none."""
    if not runs.num_records:
        return []
    tables = [_passes_table(runs, totals), _distortion_table(runs), _chunks_table(runs)]
    return [*tables, _sources_table(runs)] if any(counts.sources for counts in runs.policies.values()) else tables


def _passes_table(runs: RunTotals, totals: Totals) -> Table:
    """Return passes beside what was predicted for the same documents."""
    failed = f" Requests that failed, and are not counted: {runs.num_errors}." if runs.num_errors else ""
    table = Table(
        "What runs did",
        ("policy", "runs", "complete", "output tokens", "sampled", "forced", "drafted", "drafts rejected",
         "passes by masked's", "predicted"),
        "Masked takes one pass an output token. Predicted: for the complete outputs, in their canonical tokens, from "
        f"all drafts confirmed to none, under the first setting and the first tokenizer.{failed}",
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


def _distortion_table(runs: RunTotals) -> Table:
    """Return how far the tokens that came out are the tokenizer's own."""
    columns = {
        "num_seams_sampled": "seams by the model",
        "num_seams_forced": "seams by forcing",
        "num_retokenized": "rewritten tokens",
        "num_healed": "prompt tokens taken back",
        "num_withheld": "withheld tokens",
        "num_withheld_unknown": "not understood",
    }
    table = Table(
        "What became of the tokens",
        ("policy", *columns.values(), "seams / 1000 tokens"),
        "A seam is a stretch in which the tokens are not the tokenizer's own for its text. Withheld: forced tokens "
        "that something could still change, and that the model was asked about. Not understood: of these, where what "
        "could change them follows from parts of the tokenizer that are not understood.",
    )
    for policy, counts in runs.policies.items():
        numbers = counts.numbers
        seams = numbers.get("num_seams_sampled", 0) + numbers.get("num_seams_forced", 0)
        rate = 1000 * seams / max(1, numbers.get("num_output_tokens", 0))
        table.rows.append([policy, *(str(numbers.get(name, 0)) for name in columns), f"{rate:.1f}"])
    return table


def _chunks_table(runs: RunTotals) -> Table:
    """Return the passes by the number of tokens that they fed."""
    classes = {"1": 1, "2": 2, "3 - 4": 4, "5 - 8": 8, "9 - 16": 16, "17 - 32": 32}
    table = Table(
        "Passes by the tokens fed",
        ("policy", *classes, "more"),
        "The passes over prompts are among them.",
    )
    for policy, counts in runs.policies.items():
        cells, below = [], 0
        for most in (*classes.values(), max(counts.chunk_lengths, default=0)):
            cells.append(str(sum(count for length, count in counts.chunk_lengths.items() if below < length <= most)))
            below = most
        table.rows.append([policy, *cells])
    return table


def _sources_table(runs: RunTotals) -> Table:
    """Return what each source of drafts was worth."""
    table = Table(
        "What sources drafted",
        ("policy", "source", "drafted", "accepted", "rejected", "passes saved"),
        "A pass saved: a token that was accepted, and that would have taken a pass of its own.",
    )
    for policy, counts in runs.policies.items():
        for name, source in counts.sources.items():
            accepted = percent(source.num_accepted / max(1, source.num_proposed))
            cells = [str(source.num_proposed), accepted, str(source.num_rejected), str(source.num_passes_saved)]
            table.rows.append([policy, name, *cells])
    return table


def _predicted(totals: Totals, policy: str) -> str:
    tally = next((tally for documents, _, tally in totals.whole() if documents == "results"), None)
    counts = next(iter(tally.tokens.values()), None) if tally is not None else None
    if counts is None or policy not in ("exact", "canonical"):
        return "100.0 %" if policy == "masked" else "-"
    fewest, most = (percent(counts.share_of_passes(f"{policy}_{bound}")) for bound in ("fewest", "most"))
    return f"{fewest} - {most}"
