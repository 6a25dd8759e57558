"""How much forced text may be written at once, by the rules of several engines, and how much of that is wrong?

    python experiments/boundary_rules.py [FOLDER] [--quick] [--documents 400] [--tokenizers smollm2 ...]

Documents are valid instances of the schemas in FOLDER (lines with 'schema' and 'valid'; see tests/documents.py for
where it is by default), drawn with a fixed seed, as `json.dumps` writes them; a document counts where its schema's
grammar (fixed separators, strict) accepts it. It is walked token by canonical token. Wherever the grammar forces bytes
behind one of its tokens each rule says which tokens it would write there, and is right where the document goes on with
exactly these: wrong means that the tokenizer spells the finished document otherwise. The walk then goes on behind the
forced bytes, so that every rule sees the same runs:

  alone       the tokens of the forced bytes by themselves, all of them
  longest     greedy longest match over the vocabulary, all of it: xgrammar's find_jump_forward_tokens
  drop 1      the canonical tokens in context, without the last: MLC's rule
  look back   without those from which on some token could go on legally; the last four tokens are looked at, no
              further: llguidance's rule (`chop_tokens` in its toktrie/src/toktree.rs)
  any text    this package's stable tokens, whatever text may follow
  stable      the same, knowing what the grammar permits behind the forced bytes: policy `canonical`
  retokenize  everything, the output's end included, in canonical tokens: policy `retokenize`

Times are medians over runs: `cold` with nothing remembered from other documents, `again` for the same seam once more.
Tokenizers come from the packages in tests/tokenizers.txt. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table

import jumpforward as jf
from jumpforward.decoding.boundary import Boundary
from jumpforward.grammar.bytewise import ByteWalker
from jumpforward.matching.compiler import GrammarCompiler
from jumpforward.matching.matcher import Matcher
from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.encoder import PlainEncoder, len_whole_characters
from jumpforward.vocab.vocabulary import Vocabulary

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import real_tokenizers
from documents import FOLDER, Document, drawn

ERR = Console(stderr=True)
LOOK_BACK = 4
QUICK = ("smollm2", "cl100k", "mistral-v1", "mon-unigram")

Tokens = tuple[int, ...]


class Run(NamedTuple):
    """A place in a document where bytes are forced, and what stands there in the end."""

    left: Tokens
    forced: bytes
    rest: Tokens  # the document's canonical tokens from here on
    matcher: Matcher
    walker: ByteWalker


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
        num_right = next(
            (at for at, token in enumerate(committed) if run.rest[at : at + 1] != (token,)), len(committed)
        )
        self.num_wrong += num_right < len(committed)
        self.num_committed += len(committed)
        self.num_wrong_tokens += len(committed) - num_right
        self.withheld_bytes += len(run.forced) - len(text_bytes(committed))


class Rules:
    """The rules of one tokenizer. Each takes a run and returns the tokens that it would write."""

    def __init__(self, name: str) -> None:
        tokenizer = real_tokenizers.load(name)
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer)
        self.encoder = PlainEncoder(tokenizer, self.vocabulary)
        self._borders = StableBorders(tokenizer, self.vocabulary)
        self.boundary = Boundary(self.encoder, self._borders)
        self._sorted = sorted({token for token in self.vocabulary.token_bytes if token})
        self._by_bytes = {token: index for index, token in enumerate(self.vocabulary.token_bytes) if token}
        self._longest = max(map(len, self._sorted))
        self.all: dict[str, Callable[[Run], Tokens]] = {
            "alone": self._alone,
            "longest": self._greedy,
            "drop 1": lambda run: self.boundary.spell(run.left, run.forced).ids[:-1],
            "look back": self._look_back,
            "any text": lambda run: self.boundary.spell(run.left, run.forced).stable,
            "stable": lambda run: self.boundary.spell(run.left, run.forced, run.matcher.live_bytes).stable,
            "retokenize": self._retokenize,
        }

    def forget(self) -> None:
        """Forget the seams seen so far."""
        self.boundary = Boundary(self.encoder, self._borders)

    def _alone(self, run: Run) -> Tokens:
        return self.encoder.encode(run.forced[: len_whole_characters(run.forced)]) or ()

    def _greedy(self, run: Run) -> Tokens:
        ids, data = [], run.forced
        while data:
            fitting = (data[:length] for length in range(min(self._longest, len(data)), 0, -1))
            token = next((piece for piece in fitting if piece in self._by_bytes), None)
            if token is None:
                break
            ids.append(self._by_bytes[token])
            data = data[len(token) :]
        return tuple(ids)

    def _look_back(self, run: Run) -> Tokens:
        ids = self.boundary.spell(run.left, run.forced).ids
        end = self.vocabulary.text_bytes(ids[-LOOK_BACK:])[-self._longest :]
        ahead = run.walker.fork()
        ahead.consume(run.forced)
        live = ahead.live_bytes()
        for start in range(len(end)):
            if self._goes_on(end[start:], ahead, live):
                lengths = accumulate(len(self.vocabulary.token_bytes[token]) for token in reversed(ids))
                num_dropped = next(count for count, length in enumerate(lengths, 1) if length >= len(end) - start)
                return ids[: len(ids) - num_dropped]
        return ids

    def _goes_on(self, beginning: bytes, ahead: ByteWalker, live: bytes) -> bool:
        """Whether some token begins so and goes on legally."""
        place = bisect_right(self._sorted, beginning)
        while place < len(self._sorted) and self._sorted[place].startswith(beginning):
            more = self._sorted[place][len(beginning) :]
            if more[0] in live and ahead.consume(more):
                ahead.rollback(1)
                return True
            place += 1
        return False

    def _retokenize(self, run: Run) -> Tokens:
        rewrite = self.boundary.rewrite(run.left, len(run.left), run.forced)
        return () if rewrite is None else (*run.left[: rewrite.num_kept], *rewrite.ids)[len(run.left) :]


def main() -> None:
    options = _options()
    documents = drawn(options.folder, options.documents)
    ERR.print(f"{len(documents)} documents, {sum(len(each.data) for each in documents)} bytes")
    results = {}
    for name in options.tokenizers:
        results[name] = _measure(name, documents)
        ERR.print(_table(name, results[name]))
    record = {"experiment": "boundary_rules", "conditions": _conditions(len(documents)), "results": results}
    sys.stdout.write(json.dumps(record) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--tokenizers", nargs="+", default=real_tokenizers.NAMES, choices=real_tokenizers.NAMES)
    parser.add_argument("--quick", action="store_true", help="30 documents, a tokenizer of each kind")
    options = parser.parse_args()
    if not any(options.folder.glob("*.jsonl")):
        parser.error(f"expected .jsonl files in {options.folder}, and there are none")
    if options.quick:
        options.documents, options.tokenizers = 30, QUICK
    return options


def _conditions(num_documents: int) -> dict[str, Any]:
    return {
        "num_documents": num_documents,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("tokenizers", "xgrammar")},
    }


def _measure(name: str, documents: Sequence[Document]) -> dict[str, Any]:
    """Run every rule at every run of every document."""
    rules = Rules(name)
    compiler = GrammarCompiler(rules.vocabulary, automata=False)
    tallies = {rule: Tally() for rule in rules.all}
    num_runs = num_bytes = num_inside = num_skipped = 0
    for document in track(documents, name, console=ERR, transient=True):
        ids = rules.encoder.encode(document.data)
        if ids is None:
            num_skipped += 1
            continue
        rules.forget()
        for run in _runs(document.grammar, compiler, rules.vocabulary, ids):
            num_runs += 1
            num_bytes += len(run.forced)
            num_inside += _num_inside(run, rules.vocabulary)
            for rule, choose in rules.all.items():
                _ask(choose, run, tallies[rule], rules.vocabulary.text_bytes)
    return {
        "num_runs": num_runs,
        "forced_bytes": num_bytes,
        "num_tokens_inside": num_inside,
        "num_documents_skipped": num_skipped,
        "rules": {rule: _summary(tally, num_runs, num_inside) for rule, tally in tallies.items()},
    }


def _runs(grammar: jf.Grammar, compiler: GrammarCompiler, vocabulary: Vocabulary, ids: Tokens) -> Iterator[Run]:
    """Walk a document by its canonical tokens, and give every place in it where bytes are forced."""
    matcher, walker = compiler.pushdown(grammar).matcher(), grammar.walker()
    len_ahead = 0  # bytes from here on that belong to a run already given
    for index, token in enumerate(ids):
        if len_ahead <= 0 and (forced := matcher.forced_bytes()):
            len_ahead = len(forced)
            yield Run(ids[:index], forced, ids[index:], matcher, walker)
        matcher.consume(token)
        walker.consume(vocabulary.token_bytes[token])
        len_ahead -= len(vocabulary.token_bytes[token])


def _num_inside(run: Run, vocabulary: Vocabulary) -> int:
    """Return how many of the document's tokens lie within the forced bytes: no rule can do better."""
    ends = accumulate(len(vocabulary.token_bytes[token]) for token in run.rest)
    return sum(1 for _ in iter(lambda: next(ends, len(run.forced) + 1) <= len(run.forced), False))


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


def _table(name: str, measured: dict[str, Any]) -> Table:
    title = f"{name}: {measured['num_runs']} runs, {measured['num_tokens_inside']} tokens within forced text"
    table = Table("rule", "right", "written", "wrong", "withheld", "bytes", "cold µs", "again µs", title=title)
    for column in table.columns:
        column.no_wrap = True
        column.justify = "left" if column.header == "rule" else "right"
    for rule, row in measured["rules"].items():
        table.add_row(rule, f"{row['share_right']:.2%}", *(str(row[key]) for key in list(row)[2:]))
    return table


if __name__ == "__main__":
    main()
