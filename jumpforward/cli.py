"""The command line: ``jumpforward generate``, ``batch``, ``bench``, ``inspect``, ``report`` and ``demo``.

Exit codes: 0 a complete output, 1 bad input or an error, 3 an output that was cut off.
"""

from __future__ import annotations

import json
import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

import jumpforward
from jumpforward.batch_command import batch
from jumpforward.decoding.policy import PolicyName
from jumpforward.errors import JumpForwardError, OptionError
from jumpforward.grammar.spec import Whitespace
from jumpforward.report.command import report

if TYPE_CHECKING:
    from jumpforward.engine.engine import Engine
    from jumpforward.engine.result import Result
    from jumpforward.grammar.spec import Grammar

EXIT_ERROR = 1
EXIT_TRUNCATED = 3
EXIT_INTERRUPTED = 130
Form = Literal["text", "dot", "svg", "json"]
UsageError: Any = typer.BadParameter.__base__  # of the click that typer uses, its own copy or the package

app = typer.Typer(
    help="Grammar-constrained generation with fewer forward passes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, highlight=False)
app.command()(batch)


class Output(StrEnum):
    """What ``generate`` prints."""

    TEXT = "text"
    JSON = "json"
    TOKENS = "tokens"


SchemaOption = Annotated[Path | None, typer.Option("--schema", help="A JSON Schema file.")]
RegexOption = Annotated[str | None, typer.Option("--regex", help="A regular expression.")]
EbnfOption = Annotated[Path | None, typer.Option("--ebnf", help="An EBNF (GBNF) grammar file; its first rule is root.")]
LarkOption = Annotated[Path | None, typer.Option("--lark", help="A Lark grammar file; its first rule is start.")]
ChoiceOption = Annotated[list[str] | None, typer.Option("--choice", help="One of several strings; give it repeatedly.")]
WhitespaceOption = Annotated[Whitespace, typer.Option(help="Whitespace in JSON.")]
OpenOption = Annotated[bool, typer.Option("--open", help="Allow properties that the schema does not name.")]
PromptOption = Annotated[str, typer.Option(help="The user's message; with --raw, the text to continue.")]
SystemOption = Annotated[str | None, typer.Option(help="A system message before it.")]
RawOption = Annotated[bool, typer.Option("--raw", help="Take the prompt as it is, without the chat template.")]
ModelOption = Annotated[str | None, typer.Option(help="A hub id or a folder; by default SmolLM2-135M-Instruct.")]
DtypeOption = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; by default as saved.")]
TokensOption = Annotated[int, typer.Option(help="The most tokens of the output.")]


app.command()(report)


def _version(value: bool) -> None:
    if value:
        out.print(f"jumpforward {jumpforward.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Grammar-constrained generation with fewer forward passes, and no silent change to the output."""


@app.command()
def generate(
    prompt: PromptOption,
    schema: SchemaOption = None,
    regex: RegexOption = None,
    ebnf: EbnfOption = None,
    lark: LarkOption = None,
    choice: ChoiceOption = None,
    whitespace: WhitespaceOption = "fixed",
    open_: OpenOption = False,
    system: SystemOption = None,
    raw: RawOption = False,
    model: ModelOption = None,
    dtype: DtypeOption = None,
    policy: Annotated[PolicyName, typer.Option(help="What is done with forced text.")] = "exact",
    max_new_tokens: TokensOption = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among this many.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw among the likeliest with this probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Draw among those this near to the likeliest.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes draws repeatable.")] = None,
    ensure_complete: Annotated[
        bool,
        typer.Option("--ensure-complete", help="Only tokens that leave room for a complete output (regex, choice)."),
    ] = False,
    heal: Annotated[bool, typer.Option("--heal", help="Let the output merge with the prompt's last tokens.")] = False,
    stop: Annotated[list[str] | None, typer.Option(help="End in front of this string.")] = None,
    output: Annotated[Output, typer.Option(help="text, one JSON record, or tokens by provenance.")] = Output.TEXT,
) -> None:
    """Generate one output: the text on standard output, the account on standard error."""
    grammar = _grammar(schema, regex, ebnf, lark, choice, whitespace, open_)
    engine = _engine(model, dtype)
    pieces = engine.stream(
        _messages(prompt, system, raw),
        grammar,
        policy=policy,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop,
        logprobs=output is Output.JSON,
        ensure_complete=ensure_complete,
        heal=heal,
    )
    for piece in pieces:
        if output is Output.TEXT:
            sys.stdout.write(piece)
            sys.stdout.flush()
    result = pieces.result
    if result is None:
        raise RuntimeError("the stream ended without a result")
    if output is Output.TEXT:
        sys.stdout.write("\n")
    elif output is Output.JSON:
        sys.stdout.write(json.dumps(result.record(), ensure_ascii=False) + "\n")
    else:
        _print_tokens(engine, result)
    err.print(result.stats.table())
    if not result.complete:
        err.print(f"incomplete: the output ended by {result.finish_reason!r} before the grammar permits its end")
        raise typer.Exit(EXIT_TRUNCATED)


@app.command()
def bench(
    prompt: PromptOption,
    schema: SchemaOption = None,
    regex: RegexOption = None,
    ebnf: EbnfOption = None,
    lark: LarkOption = None,
    choice: ChoiceOption = None,
    whitespace: WhitespaceOption = "fixed",
    open_: OpenOption = False,
    system: SystemOption = None,
    raw: RawOption = False,
    model: ModelOption = None,
    dtype: DtypeOption = None,
    max_new_tokens: TokensOption = 256,
    repeats: Annotated[int, typer.Option(help="Rounds that count.", min=1)] = 3,
) -> None:
    """Does it pay for this model and this grammar? All presets and plain generate, interleaved, as medians.

    The table goes to standard error, one JSON object to standard output.
    """
    from rich.progress import track

    from jumpforward.bench import compare

    grammar = _grammar(schema, regex, ebnf, lark, choice, whitespace, open_)
    engine = _engine(model, dtype)
    comparison = compare(
        engine,
        _messages(prompt, system, raw),
        grammar,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        progress=lambda rounds: track(rounds, "rounds", console=err, transient=True, total=repeats + 1),
    )
    err.print(comparison.table())
    record = {"repeats": repeats, "dtype": str(engine.model.dtype), "methods": list(comparison.rows())}
    sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")


@app.command()
def inspect(
    schema: SchemaOption = None,
    regex: RegexOption = None,
    ebnf: EbnfOption = None,
    lark: LarkOption = None,
    choice: ChoiceOption = None,
    whitespace: WhitespaceOption = "fixed",
    open_: OpenOption = False,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", "--model", help="Lay a model's tokens over it; 'default' for SmolLM2's."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Walk this document through the grammar.")] = None,
    segmentations: Annotated[str | None, typer.Option(help="Show the ways to write this text in tokens.")] = None,
    form: Annotated[Form, typer.Option("--format", help="How to show it.")] = "text",
    depth: Annotated[int, typer.Option(help="How many choices deep a grammar that nests is unfolded.", min=1)] = 8,
) -> None:
    """Show what a grammar forces, before any model runs: its compressed graph, its tokens, a document's way."""
    from jumpforward.report import inspect as show
    from jumpforward.report.walk import Walk, walk

    tokens = None if tokenizer is None else show.tokens_of(None if tokenizer == "default" else tokenizer)
    given = (schema, regex, ebnf, lark, choice)
    if form == "svg" and shutil.which("dot") is None:
        err.print("Graphviz's program dot is not installed: here is the graph in its language, DOT", soft_wrap=True)
        form = "dot"
    if segmentations is not None:
        if tokens is None:
            raise OptionError("--segmentations", segmentations, "a --tokenizer beside it")
        sys.stdout.write(show.segmentation_text(segmentations, tokens, form) + "\n")
        return
    grammar = _grammar(*given, whitespace, open_)
    if text is None:
        sys.stdout.write(show.graph_text(grammar, depth, form, tokens) + "\n")
        return
    policies: list[Whitespace] = [whitespace] if schema is None else ["fixed", "flexible"]
    walks: dict[str, Walk] = {name: walk(_grammar(*given, name, open_), text.encode()) for name in policies}
    if form == "json":
        sys.stdout.write(json.dumps(show.walk_layout(walks, tokens), ensure_ascii=False) + "\n")
    elif form == "text":
        out.print(show.walk_view(walks, tokens))
    else:
        raise OptionError("--format", form, "text or json beside --text")
    if not any(found.is_complete for found in walks.values()):
        raise typer.Exit(EXIT_ERROR)


@app.command()
def demo(model: ModelOption = None, dtype: DtypeOption = None) -> None:
    """Run one prompt under one schema with every policy, and say whether exact changed anything."""
    from jumpforward import demo as example

    engine = _engine(model, dtype)
    example.show(engine, out)


def _grammar(
    schema: Path | None,
    regex: str | None,
    ebnf: Path | None,
    lark: Path | None,
    choice: list[str] | None,
    whitespace: Whitespace,
    open_: bool,
) -> Grammar:
    given = {"schema": schema, "regex": regex, "ebnf": ebnf, "lark": lark, "choice": choice}
    names = [f"--{name}" for name, value in given.items() if value is not None]
    if len(names) != 1:
        raise OptionError(
            "grammar", " ".join(names) or None, f"exactly one of {', '.join(f'--{name}' for name in given)}"
        )
    if schema is not None:
        return jumpforward.json_schema(_read("schema", schema), whitespace=whitespace, strict=not open_)
    if regex is not None:
        return jumpforward.regex(regex)
    if ebnf is not None:
        return jumpforward.ebnf(_read("ebnf", ebnf))
    if lark is not None:
        return jumpforward.lark(_read("lark", lark))
    return jumpforward.choice(choice or [])


def _read(option: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(f"--{option}", str(path), f"a text file that can be read ({reason})") from error


def _messages(prompt: str, system: str | None, raw: bool) -> Any:
    if raw:
        if system is not None:
            raise OptionError("--system", system, "nothing beside --raw, which takes the prompt as it is")
        return prompt
    if not prompt:
        return ""
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": prompt}]


def _engine(model: str | None, dtype: str | None, **limits: Any) -> Engine:
    from transformers.utils import logging

    logging.disable_progress_bar()  # of weights that load within a second; a command of its own has no one else's
    return jumpforward.Engine.from_pretrained(model, dtype=dtype, **limits)


def _print_tokens(engine: Engine, result: Result) -> None:
    from jumpforward.demo import coloured, legend

    out.print(coloured(engine, result, colours=out.is_terminal))
    err.print(legend())


def _fail(message: str) -> int:
    err.print(f"error: {message}", style="red", markup=False, soft_wrap=True)
    return EXIT_ERROR


def main() -> None:
    """Run the command line. User mistakes give one line on standard error, and exit code 1."""
    try:
        code = typer.main.get_command(app).main(prog_name="jumpforward", standalone_mode=False)
    except UsageError as error:
        code = _fail(error.format_message())
    except JumpForwardError as error:
        code = _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    sys.exit(code)
