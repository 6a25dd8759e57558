"""``jumpforward report``: its options, and what it prints."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from jumpforward.errors import OptionError
from jumpforward.grammar.spec import Whitespace
from jumpforward.report import chunk_cost
from jumpforward.report.build import Job, build
from jumpforward.report.chunk_cost import ChunkCost
from jumpforward.report.runs import Runs, runs_tables
from jumpforward.report.settings import Options, Setting, Strictness
from jumpforward.report.tables import tables
from jumpforward.report.totals import Totals

Spaces = Literal["fixed", "compact", "flexible", "both", "all"]
Reading = Literal["strict", "open", "both"]

_SPACES: dict[Spaces, tuple[Whitespace, ...]] = {
    "fixed": ("fixed",),
    "compact": ("compact",),
    "flexible": ("flexible",),
    "both": ("fixed", "flexible"),
    "all": ("fixed", "compact", "flexible"),
}
_READINGS: dict[Reading, tuple[Strictness, ...]] = {
    "strict": ("strict",),
    "open": ("open",),
    "both": ("strict", "open"),
}
_MAX_JOBS = 64


def report(
    corpus: Annotated[Path, typer.Argument(help="A JSONL file of schemas and instances, a folder, or one schema.")],
    tokenizer: Annotated[
        list[str] | None,
        typer.Option(
            help="A hub id, a folder, a tokenizer.json, or 'default'; repeatable. 'none' looks at bytes alone."
        ),
    ] = None,
    whitespace: Annotated[Spaces, typer.Option(help="Whitespace in JSON; both is fixed and flexible.")] = "both",
    reading: Annotated[
        Reading, typer.Option(help="strict: no properties beyond the schema's; open: as the standard says.")
    ] = "both",
    instances: Annotated[int, typer.Option(help="Documents sampled for a schema without instances.", min=0)] = 2,
    seed: Annotated[int, typer.Option(help="Makes sampled documents repeatable.")] = 0,
    limit: Annotated[int | None, typer.Option(help="Read only this many schemas.", min=1)] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds after which a schema is given up.", min=0.1)] = 60.0,
    cost: Annotated[
        str | None,
        typer.Option("--chunk-cost", help="Time of a pass by its tokens, as 1:1,8:1.5,32:2.6; or measure[=MODEL]."),
    ] = None,
    from_results: Annotated[
        Path | None, typer.Option(help="Records of `generate --output json`, one a line, beside the prediction.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--out", help="Write a page of HTML here.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write all figures here, as JSON.")] = None,
    pictures: Annotated[
        Path | None, typer.Option(help="A folder for the plots and the first document as SVG files.")
    ] = None,
    documents: Annotated[int, typer.Option(help="Schemas whose document the page shows.", min=0)] = 1000,
    jobs: Annotated[int | None, typer.Option(help="Processes at a time.", min=1, max=_MAX_JOBS)] = None,
) -> None:
    """Say how much of a corpus is forced, why forcing stops, and whether it pays; no model is run.

    Interrupted, it goes on where it was when it is started again with the same arguments and an output file.
    """
    console = Console(stderr=True, highlight=False)
    runs = Runs(from_results)
    job = Job(
        corpus=corpus,
        options=Options(
            settings=_settings(reading, whitespace),
            tokenizers=_tokenizers(tokenizer),
            num_sampled=instances,
            seed=seed,
            time_limit_s=time_limit,
            num_rows=limit,
        ),
        num_jobs=jobs or min(os.cpu_count() or 1, _MAX_JOBS),
        json_path=json_path,
        html_path=html,
        pictures=pictures,
        curve=_curve(cost),
        runs=runs,
        num_shown=documents,
    )
    totals = build(job, console)
    _print(totals, job)
    for path in (json_path, html, pictures):
        if path is not None:
            console.print(f"written: {path}", soft_wrap=True, markup=False)


def _settings(reading: Reading, whitespace: Spaces) -> tuple[Setting, ...]:
    return tuple(
        Setting(strictness=strictness, whitespace=spaces)
        for strictness in _READINGS[reading]
        for spaces in _SPACES[whitespace]
    )


def _tokenizers(names: list[str] | None) -> tuple[str, ...]:
    """Return the tokenizers' names, each once; the default model's where none is given.

    Raises:
        OptionError: 'none' beside others.
    """
    given = tuple(dict.fromkeys(names or ["default"]))
    if "none" not in given:
        return given
    if len(given) > 1:
        raise OptionError("--tokenizer", " ".join(given), "'none' alone, or tokenizers")
    return ()


def _curve(cost: str | None) -> ChunkCost | None:
    if cost is None:
        return None
    word, _, model = cost.partition("=")
    return chunk_cost.measured(model or None) if word == "measure" else chunk_cost.parsed(cost)


def _print(totals: Totals, job: Job) -> None:
    """Print the tables to standard output, as wide as they are where it is no terminal."""
    out = Console(highlight=False)
    if not out.is_terminal:
        out = Console(highlight=False, width=160, file=sys.stdout)
    for table in [*runs_tables(job.runs.totals, totals), *tables(totals, job.curve)]:
        out.print(table.view(), "")
    if totals.num_problems:
        out.print(f"{totals.num_problems} of {totals.num_schemas} schemas have no result: see --json or --out.")
