"""A report from its corpus to its files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from jumpforward.errors import OptionError
from jumpforward.report import corpus
from jumpforward.report.chunk_cost import ChunkCost
from jumpforward.report.html import Page, write_html
from jumpforward.report.layout import write_json
from jumpforward.report.partial import Partial, fingerprint
from jumpforward.report.pictures import write_pictures
from jumpforward.report.pool import measured
from jumpforward.report.runs import Runs
from jumpforward.report.settings import Options
from jumpforward.report.totals import Totals


@dataclass(frozen=True)
class Job:
    """What to report, and where to.

    Attributes:
        corpus: see :func:`jumpforward.report.corpus.rows`.
        options: what the figures depend on.
        num_jobs: processes at a time.
        json_path: where the JSON goes, if anywhere.
        html_path: where the page goes, if anywhere.
        pictures: the folder that the pictures go to, if anywhere.
        curve: the time of a chunk, for speedups.
        runs: results of runs, which take the place of instances.
        num_shown: documents that the page shows at most.
    """

    corpus: Path
    options: Options
    num_jobs: int = 1
    json_path: Path | None = None
    html_path: Path | None = None
    pictures: Path | None = None
    curve: ChunkCost | None = None
    runs: Runs = field(default_factory=Runs)
    num_shown: int = 1000


def build(job: Job, console: Console) -> Totals:
    """Measure the corpus, write the files, and return the totals. Interrupted, it leaves its partial results.

    Raises:
        OptionError: a file cannot be read or written.
        TokenizerError: a tokenizer cannot be used.
    """
    for path in (job.json_path, job.html_path):
        if path is not None and not path.parent.is_dir():
            raise OptionError("output", str(path), "a file in a folder that exists")
    if job.pictures is not None and not job.pictures.is_dir():
        raise OptionError("--pictures", str(job.pictures), "a folder that exists")
    num_rows = min(corpus.num_rows(job.corpus), job.options.num_rows or 1 << 60)
    if not num_rows:
        raise OptionError("CORPUS", str(job.corpus), "at least one schema in it")
    with _partial(job, console) as partial:
        _measure(job, partial, num_rows, console)
        totals = Totals()
        for result in partial.results():
            totals.add(result)
            job.runs.seen(result.id, num_rows)
        _write(job, partial, totals)
        partial.remove()
    return totals


@contextmanager
def _partial(job: Job, console: Console) -> Iterator[Partial]:
    """Open the partial results next to the output, or in a folder that goes away where there is none."""
    output = job.json_path or job.html_path
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if output is None else output.parent
        path = folder / f"{output.name if output else 'report'}.partial.jsonl"
        key = fingerprint(job.corpus, job.options) + job.runs.fingerprint
        partial = stack.enter_context(Partial(path, key))
        if partial.num_kept:
            console.print(f"going on behind {partial.num_kept} schemas of an earlier start ({path.name})")
        if partial.is_other:
            console.print(f"{path.name} was of other arguments or another corpus, and begins anew")
        yield partial


def _measure(job: Job, partial: Partial, total: int, console: Console) -> None:
    """Measure the rows that are not in the partial results yet."""
    left = (
        job.runs.instead_of_instances(row, total)
        for row in corpus.limited(corpus.rows(job.corpus), job.options.num_rows)
        if row.index not in partial
    )
    columns = (TextColumn("schemas"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    if partial.num_kept >= total:
        return
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total, completed=partial.num_kept)
        for result in measured(left, job.options, min(job.num_jobs, total - partial.num_kept)):
            partial.append(result)
            progress.advance(task)


def _write(job: Job, partial: Partial, totals: Totals) -> None:
    payoffs = totals.payoffs(job.curve) if job.curve is not None else None
    runs = job.runs.totals if job.runs.totals.num_records else None
    if job.json_path is not None:
        parts: dict[str, Any] = {
            "corpus": job.corpus.name,
            "options": job.options,
            "totals": totals,
            "chunk_cost": job.curve,
            "payoffs": payoffs,
            "runs": runs,
        }
        write_json(job.json_path, parts, partial.results())
    if job.html_path is not None:
        page = Page(job.corpus.name, job.options, totals, job.curve, job.runs.totals, job.num_shown)
        write_html(job.html_path, page, partial.results)
    if job.pictures is not None:
        write_pictures(job.pictures, totals, next(iter(partial.results()), None))
