"""The demonstration: one prompt, one schema, every policy; and tokens coloured by who chose them."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

import jumpforward
from jumpforward.decoding.policy import POLICIES
from jumpforward.engine.text import whole_characters
from jumpforward.stats import Provenance

if TYPE_CHECKING:
    from rich.console import Console

    from jumpforward.engine.engine import Engine
    from jumpforward.engine.result import Result

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer"},
        "occupation": {"type": "string", "maxLength": 40},
        "city": {"type": "string", "maxLength": 40},
        "email": {"type": "string", "maxLength": 40},
        "newsletter": {"type": "boolean"},
    },
    "required": ["name", "age", "occupation", "city", "email", "newsletter"],
}
PROMPT = (
    "Extract the person as JSON: Maria Lopez is a nurse of 34 from Valencia. You can write to "
    "maria.lopez@example.org. She wants our newsletter."
)
STYLES = {
    Provenance.SAMPLED: "bold yellow",
    Provenance.FORCED: "cyan",
    Provenance.DRAFTED: "green",
    Provenance.RETOKENIZED: "magenta",
    Provenance.HEALED: "blue",
}


def show(engine: Engine, console: Console) -> None:
    """Run the demonstration and print it."""
    grammar = jumpforward.json_schema(SCHEMA)
    prompt = [{"role": "user", "content": PROMPT}]
    engine.generate(prompt, grammar, max_new_tokens=2)  # the first call of a process warms up threads and caches
    console.print(f"[bold]Prompt[/]  {PROMPT}\n")
    results = {}
    for name in POLICIES:
        if engine.memory is not None:
            engine.memory.clear()  # the policies are compared: none is to know another's output
        results[name] = engine.generate(prompt, grammar, policy=name)
    for name, result in results.items():
        console.print(Text(f"{name:<11}", "bold") + coloured(engine, result, colours=True))
    console.print(Text("          ") + legend(), "")
    console.print(_table(results))
    same = results["exact"].token_ids == results["masked"].token_ids
    verdict = "the same tokens as" if same else "OTHER tokens than"
    console.print(f"exact made {verdict} masked.", style="bold green" if same else "bold red")


def coloured(engine: Engine, result: Result, *, colours: bool) -> Text:
    """Return the output's text in the colours of :func:`legend`; without colours, one line for each run of tokens.

    Such a line names the source of what was drafted.
    """
    text = Text()
    rows = zip(result.provenance, result.sources, result.token_ids, strict=True)
    for (provenance, source), run in groupby(rows, key=lambda row: row[:2]):
        piece = whole_characters(engine.vocabulary.text_bytes(token for *_, token in run))
        text.append(piece if colours else f"{provenance:<11} {source or '':<8} {piece!r}\n", STYLES.get(provenance, ""))
    return text


def legend() -> Text:
    """Return what the colours mean."""
    return Text("   ").join(Text(name.value, style) for name, style in STYLES.items())


def _table(results: dict[str, Result]) -> Table:
    table = Table("policy", "forward passes", "a token", "seconds", "forced", "drafted", "sampled")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, result in results.items():
        stats = result.stats
        total = stats.num_output_tokens
        shares = (stats.num_forced, stats.num_drafted, stats.num_sampled)
        table.add_row(
            name,
            str(stats.num_forward_passes),
            f"{stats.passes_per_token:.2f}",
            f"{stats.total_s:.2f}",
            *(f"{100 * share / total:.0f} %" for share in shares),
        )
    return table
