"""What the experiments share: options, conditions, tables, plots, and the last line of standard output."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    import jumpforward as jf

HERE = Path(__file__).parent
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
# Tables and progress, as wide as they are where it is no terminal; standard output has the one JSON object.
ERR = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
COLOURS = ("#0f8b8d", "#e0a458", "#7b6fd0", "#c8553d", "#5c8d4e", "#8c8c8c")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "jumpforward",  # the same picture from the same numbers
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def parser(description: str | None, draws: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the options of every experiment; one that draws nothing at random has no seed."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", help=f"a hub id or a folder; by default {DEFAULT_MODEL}")
    made.add_argument("--quick", action="store_true", help="a small form, to see that it runs; for no figures")
    if draws:
        made.add_argument("--seed", type=int, default=0)
    made.add_argument("--pictures", type=Path, help="folder of the plots; by default pictures/, and none with --quick")
    return made


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def workload(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file of requests."""
    return lines(HERE / "workloads" / f"{name}.jsonl")


def conditions(options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Return what a figure depends on: the options, the machine, and the versions."""
    own = {name: value for name, value in vars(options).items() if name not in ("model", "pictures")}
    return {
        "model": options.model or DEFAULT_MODEL,
        **own,
        **more,
        "num_threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("jumpforward", "torch", "transformers", "xgrammar")},
        },
    }


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on standard error, numbers with three decimals."""
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row))
    ERR.print(table)


@contextmanager
def plot(options: argparse.Namespace, name: str, width: float = 8, height: float = 4) -> Iterator[Axes]:
    """Give axes to draw on, and save them as an SVG file where plots are wanted."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.subplots()
        folder = options.pictures or (None if options.quick else HERE / "pictures")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})


def finish(experiment: str, conditions: dict[str, Any], **results: Any) -> None:
    """Print the last line of standard output."""
    sys.stdout.write(json.dumps({"experiment": experiment, "conditions": conditions, **results}) + "\n")


@torch.inference_mode()
def logprobs(engine: jf.Engine, ids: Sequence[int], num_last: int = 1) -> torch.Tensor:
    """Return what the model says behind each of the last tokens: float64 log-probabilities (num_last, vocab)."""
    rows = engine.model(torch.tensor([list(ids)]), use_cache=False, logits_to_keep=num_last).logits[0]
    return torch.log_softmax(rows.double(), dim=-1)
