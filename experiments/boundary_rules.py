"""How much forced text may be written at once, by the rules of several engines, and how much of that is wrong?

    python experiments/boundary_rules.py [FOLDER] [--quick] [--documents 400] [--tokenizers smollm2 ...]

Documents are valid instances of the schemas in FOLDER (lines with 'schema' and 'valid'; see tests/documents.py for
where it is by default), drawn with a fixed seed, as `json.dumps` writes them; a document counts where its schema's
grammar (fixed separators, strict) accepts it. It is walked token by canonical token. Wherever the grammar forces bytes
behind one of its tokens each rule says which tokens it would write there, and is right where the document goes on with
exactly these: wrong means that the tokenizer spells the finished document otherwise. The walk then goes on behind the
forced bytes, so that every rule sees the same runs. The rules are described in rules.py.

Times are medians over runs: `cold` with nothing remembered from other documents, `again` for the same seam once more.
Tokenizers come from the packages in tests/tokenizers.txt. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from harness import COLOURS, ERR, conditions, finish, parser, plot, show
from rich.progress import track
from rules import Rules, Run, Tokens, runs

from jumpforward.matching.compiler import GrammarCompiler

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import documents as corpus
import real_tokenizers

QUICK = ("smollm2", "cl100k", "mistral-v1", "mon-unigram")
SHOWN = ("drop 1", "look back", "any text", "stable")  # rules that are seldom wrong


@dataclass
class Tally:
    """What a rule did over all runs."""

    num_wrong: int = 0
    num_committed: int = 0
    num_wrong_tokens: int = 0
    withheld_bytes: int = 0
    cold_us: list[float] = field(default_factory=list)
    again_us: list[float] = field(default_factory=list)

    def add(self, run: Run, committed: Tokens, text_bytes: Callable[[Tokens], bytes]) -> None:
        """Count one run."""
        num_right = run.num_right(committed)
        self.num_wrong += num_right < len(committed)
        self.num_committed += len(committed)
        self.num_wrong_tokens += len(committed) - num_right
        self.withheld_bytes += len(run.forced) - len(text_bytes(committed))


def main() -> None:
    options = _options()
    documents = corpus.drawn(options.folder, options.documents)
    num_bytes = sum(len(each.data) for each in documents)
    ERR.print(f"{len(documents)} documents, {num_bytes} bytes")
    results = {}
    for name in options.tokenizers:
        results[name] = _measure(name, documents)
        _show(name, results[name])
    _plot(options, results)
    del options.folder  # where the documents are is no condition
    found = {"num_documents": len(documents), "document_bytes": num_bytes, "tokenizers_version": version("tokenizers")}
    finish("boundary_rules", conditions(options, **found), results=results)


def _options() -> argparse.Namespace:
    made = parser(__doc__, draws=False)
    made.add_argument("folder", type=Path, nargs="?", default=corpus.FOLDER)
    made.add_argument("--documents", type=int, default=400)
    made.add_argument("--tokenizers", nargs="+", default=real_tokenizers.NAMES, choices=real_tokenizers.NAMES)
    options = made.parse_args()
    if not any(options.folder.glob("*.jsonl")):
        made.error(f"expected .jsonl files in {options.folder}, and there are none")
    if options.quick:  # a tokenizer of each kind
        options.documents, options.tokenizers = 30, QUICK
    return options


def _measure(name: str, documents: Sequence[corpus.Document]) -> dict[str, Any]:
    """Run every rule at every run of every document."""
    rules = Rules(real_tokenizers.load(name))
    compiler = GrammarCompiler(rules.vocabulary, automata=False)
    tallies = {rule: Tally() for rule in rules.all}
    num_runs = num_bytes = num_inside = num_skipped = 0
    for document in track(documents, name, console=ERR, transient=True):
        ids = rules.encoder.encode(document.data)
        if ids is None:
            num_skipped += 1
            continue
        rules.forget()
        for run in runs(document.grammar, compiler, rules.vocabulary, ids):
            num_runs += 1
            num_bytes += len(run.forced)
            num_inside += run.num_inside(rules.vocabulary)
            for rule, choose in rules.all.items():
                _ask(choose, run, tallies[rule], rules.vocabulary.text_bytes)
    return {
        "num_runs": num_runs,
        "forced_bytes": num_bytes,
        "num_tokens_inside": num_inside,
        "num_documents_skipped": num_skipped,
        "rules": {rule: _summary(tally, num_runs, num_inside) for rule, tally in tallies.items()},
    }


def _ask(choose: Callable[[Run], Tokens], run: Run, tally: Tally, text_bytes: Callable[[Tokens], bytes]) -> None:
    start = perf_counter()
    committed = choose(run)
    middle = perf_counter()
    choose(run)
    end = perf_counter()
    tally.add(run, committed, text_bytes)
    tally.cold_us.append(1e6 * (middle - start))
    tally.again_us.append(1e6 * (end - middle))


def _summary(tally: Tally, num_runs: int, num_inside: int) -> dict[str, Any]:
    return {
        "num_wrong_runs": tally.num_wrong,
        "share_right": round(1 - tally.num_wrong / max(1, num_runs), 5),
        "num_committed": tally.num_committed,
        "num_wrong_tokens": tally.num_wrong_tokens,
        "num_withheld": num_inside - (tally.num_committed - tally.num_wrong_tokens),
        "withheld_bytes": tally.withheld_bytes,
        "cold_us": round(median(tally.cold_us), 1) if tally.cold_us else None,
        "again_us": round(median(tally.again_us), 1) if tally.again_us else None,
    }


def _show(name: str, measured: dict[str, Any]) -> None:
    rows = [
        (rule, f"{row['share_right']:.2%}", *(row[key] for key in list(row)[2:]))
        for rule, row in measured["rules"].items()
    ]
    title = f"{name}: {measured['num_runs']} runs, {measured['num_tokens_inside']} tokens within forced text"
    show(title, ("rule", "right", "written", "wrong", "withheld", "bytes", "cold µs", "again µs"), rows)


def _plot(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Draw what the rules that are seldom wrong write, as a share of what could be written."""
    names = list(results)[::-1]
    with plot(options, "boundary_rules", height=1.5 + 0.45 * len(names)) as axes:
        for index, rule in enumerate(SHOWN):
            shares = [
                (found["rules"][rule]["num_committed"] - found["rules"][rule]["num_wrong_tokens"])
                / max(1, found["num_tokens_inside"])
                for found in (results[name] for name in names)
            ]
            places = [place - 0.2 * index for place in range(len(names))]
            axes.barh(places, shares, 0.18, label=rule, color=COLOURS[index], hatch=("", "//", "..", "xx")[index])
        axes.set_yticks([place - 0.3 for place in range(len(names))], names)
        axes.set_xlabel("tokens written rightly, of those within forced text")
        axes.set_xlim(0, 1)
        axes.legend(ncols=len(SHOWN), loc="lower center", bbox_to_anchor=(0.5, 1.0))


if __name__ == "__main__":
    main()
