"""The same request by several methods, interleaved in one run: does jumping forward pay here?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from xgrammar.contrib.hf import LogitsProcessor

from jumpforward.decoding.policy import POLICIES
from jumpforward.engine.prompt import Prompt, encode_prompt
from jumpforward.engine.text import whole_characters
from jumpforward.grammar.spec import Grammar

if TYPE_CHECKING:
    from rich.table import Table

    from jumpforward.engine.engine import Engine
    from jumpforward.engine.result import Result

GENERATE = "model.generate"
METHODS = (GENERATE, *POLICIES)


@dataclass(frozen=True)
class Outcome:
    """One run of one method. ``result`` is None for :data:`GENERATE`, which has none."""

    text: str
    token_ids: tuple[int, ...]
    num_forward_passes: int
    seconds: float
    result: Result | None = None


@dataclass(frozen=True)
class Comparison:
    """All runs of all methods on one request; ``outcomes[method]`` in the order in which they ran."""

    outcomes: dict[str, list[Outcome]]

    def seconds(self, method: str) -> float:
        """Return the median seconds of a method."""
        return median(outcome.seconds for outcome in self.outcomes[method])

    def speedup(self, method: str, base: str) -> float:
        """Return how many times faster than ``base`` a method was: the median over rounds of the round's ratio."""
        pairs = zip(self.outcomes[base], self.outcomes[method], strict=True)
        return median(slow.seconds / fast.seconds for slow, fast in pairs)

    def passes(self, method: str) -> int:
        """Return the forward passes of a method, the prompt's included: the median, since drafts learn from runs."""
        return int(median(outcome.num_forward_passes for outcome in self.outcomes[method]))

    def agrees(self, method: str, base: str) -> bool:
        """Return whether two methods made the same tokens."""
        return self.outcomes[method][0].token_ids == self.outcomes[base][0].token_ids

    def sources(self, method: str) -> dict[str, dict[str, float]]:
        """Return what each source of drafts did in a method's last run."""
        result = self.outcomes[method][-1].result
        return {} if result is None else {name: each.model_dump() for name, each in result.stats.sources.items()}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one JSON object a method."""
        for method, outcomes in self.outcomes.items():
            yield {
                "method": method,
                "median_s": round(self.seconds(method), 4),
                "speedup": {base: round(self.speedup(method, base), 3) for base in (GENERATE, "masked")},
                "num_forward_passes": self.passes(method),
                "num_output_tokens": len(outcomes[0].token_ids),
                "tokens_equal_masked": self.agrees(method, "masked"),
                "sources": self.sources(method),
                "text": outcomes[0].text,
            }

    def table(self) -> Table:
        """Return the comparison as a table for a terminal."""
        from rich.table import Table

        columns = ("seconds", f"× {GENERATE}", "× masked", "passes", "tokens", "tokens = masked")
        table = Table("method", *columns, "passes saved by")
        table.columns[0].no_wrap = True
        for column in table.columns[1:-1]:
            column.justify = "right"
        for row in self.rows():
            table.add_row(
                row["method"],
                f"{row['median_s']:.3f}",
                *(f"{row['speedup'][base]:.2f}" for base in (GENERATE, "masked")),
                str(row["num_forward_passes"]),
                str(row["num_output_tokens"]),
                "yes" if row["tokens_equal_masked"] else "no",
                "  ".join(
                    f"{name} {source['num_passes_saved']:.0f}"
                    for name, source in row["sources"].items()
                    if source["num_proposed"]
                ),
            )
        return table


def compare(
    engine: Engine,
    prompt: Prompt,
    grammar: Grammar,
    *,
    max_new_tokens: int = 256,
    repeats: int = 3,
    methods: Sequence[str] = METHODS,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> Comparison:
    """Run every method ``repeats`` times, greedily, round by round, behind one round that does not count.

    The order turns by one place each round, so that no method always runs behind the same other.
    """
    outcomes: dict[str, list[Outcome]] = {method: [] for method in methods}
    for turn in progress(range(-1, repeats)):
        shift = turn % len(methods)
        for method in [*methods[shift:], *methods[:shift]]:
            outcome = run_method(engine, method, prompt, grammar, max_new_tokens)
            if turn >= 0:
                outcomes[method].append(outcome)
    return Comparison(outcomes)


def run_method(engine: Engine, method: str, prompt: Prompt, grammar: Grammar, max_new_tokens: int) -> Outcome:
    """Run one method once, without what earlier outputs left."""
    if engine.memory is not None:
        engine.memory.clear()
    if method == GENERATE:
        return _generate(engine, prompt, grammar, max_new_tokens)
    result = engine.generate(prompt, grammar, policy=method, max_new_tokens=max_new_tokens)
    stats = result.stats
    return Outcome(result.text, tuple(result.token_ids), stats.num_forward_passes, stats.total_s, result)


def _generate(engine: Engine, prompt: Prompt, grammar: Grammar, max_new_tokens: int) -> Outcome:
    """Run transformers' own loop with xgrammar's logits processor, over the same compiled grammar."""
    compiled = engine.compiler.pushdown(grammar)
    ends = list(engine.vocabulary.end_ids)
    with counted_passes(engine.model) as passes:
        start = time.perf_counter()
        ids = torch.tensor([encode_prompt(prompt, engine.tokenizer, 2**31)], device=engine.model.device)
        output = engine.model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=ends,
            pad_token_id=ends[0],
            logits_processor=[LogitsProcessor(compiled.tokens)],
        )[0, ids.shape[1] :].tolist()
        seconds = time.perf_counter() - start
    text = whole_characters(engine.vocabulary.text_bytes(output))
    return Outcome(text, tuple(output), len(passes), seconds)


@contextmanager
def counted_passes(model: Any) -> Iterator[list[None]]:
    """Collect one entry for every call of the model's forward inside the block."""
    passes: list[None] = []
    handle = model.register_forward_pre_hook(lambda *_: passes.append(None))
    try:
        yield passes
    finally:
        handle.remove()
