"""``jumpforward batch``: a file of requests to a file of results, which can be killed and goes on where it was.

Requests run ahead of the oldest one that has not ended by a few batches at most, so that little is held in memory, and
little is made again after a kill.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import jinja2
import typer

import jumpforward
from jumpforward.decoding.policy import PolicyName
from jumpforward.errors import (
    BadLineError,
    EngineClosedError,
    JumpForwardError,
    ModelError,
    OptionError,
    OutOfMemoryError,
)
from jumpforward.grammar.spec import Whitespace
from jumpforward.result_file import ResultFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from jumpforward.engine.engine import Engine
    from jumpforward.engine.handle import Handle
    from jumpforward.grammar.spec import Grammar

EXIT_BAD_LINES = 3
_BATCHES_AHEAD = 4  # of the oldest request that has not ended
_NUM_KEPT_GRAMMARS = 256
_NOT_THE_LINES_FAULT = (EngineClosedError, ModelError, OutOfMemoryError)


def batch(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A file with one JSON object a line.")],
    target: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The results, one JSON object a line.")],
    schema: Annotated[
        Path | None, typer.Option("--schema", help='A JSON Schema file for all lines; else the field "schema" of each.')
    ] = None,
    prompt_field: Annotated[str | None, typer.Option(help='The field of the prompt; "prompt" by default.')] = None,
    prompt_template: Annotated[
        str | None, typer.Option(help="A Jinja template over a line's fields instead: 'Extract: {{ text }}'.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message before every prompt.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Take prompts as they are, without the chat template.")] = False,
    whitespace: Annotated[Whitespace, typer.Option(help="Whitespace in JSON.")] = "fixed",
    open_: Annotated[bool, typer.Option("--open", help="Allow properties that a schema does not name.")] = False,
    model: Annotated[str | None, typer.Option(help="A hub id or a folder; by default SmolLM2-135M-Instruct.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; by default as saved.")] = None,
    policy: Annotated[PolicyName, typer.Option(help="What is done with forced text.")] = "exact",
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens of an output.", min=1)] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among this many.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw among the likeliest with this probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Draw among those this near to the likeliest.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes draws repeatable; each line has its own from it.")] = None,
    batch_size: Annotated[int, typer.Option(help="How many requests run at a time.", min=1)] = 8,
) -> None:
    """Run every line of a file: one JSON result a line, in the same order, each on the disk before more follow.

    Killed and started again with the same arguments (--batch-size may differ) it goes on where it stopped. A line that
    cannot be used becomes an error record with its number; the exit code is then 3.
    """
    from jumpforward import cli
    from jumpforward.decoding.sampling import SamplingOptions

    sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    SamplingOptions(**sampling, seed=seed)  # so that a mistake here is not found in every line
    schema_text = None if schema is None else cli._read("schema", schema)
    grammar_of = partial(jumpforward.json_schema, whitespace=whitespace, strict=not open_)
    reader = LineReader(
        prompt=_prompt_from(prompt_field, prompt_template),
        messages=lambda prompt: cli._messages(prompt, system, raw),
        grammar=None if schema_text is None else grammar_of(schema_text),
        grammar_of=lru_cache(_NUM_KEPT_GRAMMARS)(grammar_of),
        options={"policy": policy, "max_new_tokens": max_new_tokens, **sampling},
        seed=seed,
    )
    num_lines, digest = _surveyed(source)
    job = {
        "INPUT": digest,
        "--schema": None if schema_text is None else _digest(schema_text.encode()),
        "--prompt-field": prompt_field,
        "--prompt-template": prompt_template,
        "--system": system,
        "--raw": raw,
        "--whitespace": whitespace,
        "--open": open_,
        "--model": model,
        "--dtype": dtype,
        "--policy": policy,
        "--max-new-tokens": max_new_tokens,
        "--seed": seed,
        **{f"--{name.replace('_', '-')}": value for name, value in sampling.items()},
    }
    with ResultFile(target, job) as results:
        if results.num_lines < num_lines:
            with cli._engine(model, dtype, batch_size=batch_size) as engine, _shown(results, num_lines) as show:
                run(engine, reader, source, results, most_ahead=_BATCHES_AHEAD * batch_size, show=show)
        num_errors = results.num_errors
    if num_errors:
        message = f"{num_errors} of {num_lines} lines could not be used: see their error records in {target}"
        cli.err.print(message, soft_wrap=True, markup=False)
        raise typer.Exit(EXIT_BAD_LINES)


@dataclass(frozen=True)
class LineReader:
    """Makes requests of lines.

    Attributes:
        prompt: a line's fields to its prompt.
        messages: a prompt that is text to what the engine takes.
        grammar: of all lines; None where each has its own schema.
        grammar_of: a schema's text to its grammar.
        options: what else the requests say.
        seed: from which each line has its own; None for draws that are not repeatable.
    """

    prompt: Callable[[Mapping[str, Any]], Any]
    messages: Callable[[str], Any]
    grammar: Grammar | None
    grammar_of: Callable[[str], Grammar]
    options: Mapping[str, Any]
    seed: int | None

    def request(self, line: bytes, number: int) -> dict[str, Any]:
        """Return the arguments of one call of ``submit``.

        Raises:
            BadLineError, GrammarError: the line is no JSON object, or lacks what is needed.
        """
        fields = _fields(line)
        prompt = self.prompt(fields)
        return {
            "prompt": self.messages(prompt) if isinstance(prompt, str) else prompt,
            "grammar": self.grammar or self.grammar_of(json.dumps(_field(fields, "schema"))),
            "seed": None if self.seed is None else (self.seed + number - 1) % 2**64,
            **self.options,
        }


def run(
    engine: Engine,
    reader: LineReader,
    source: Path,
    results: ResultFile,
    *,
    most_ahead: int,
    show: Callable[[], None],
) -> None:
    """Append the results of all lines that have none yet."""
    pending: deque[tuple[int, Handle | JumpForwardError]] = deque()
    for number, line in _lines(source, results.num_lines):
        pending.append((number, _started(engine, reader, line, number)))
        while pending and (len(pending) >= most_ahead or _has_ended(pending[0][1])):
            results.append([_record(*pending.popleft())])
            show()
    while pending:
        results.append([_record(*pending.popleft())])
        show()


def _started(engine: Engine, reader: LineReader, line: bytes, number: int) -> Handle | JumpForwardError:
    try:
        return engine.submit(**reader.request(line, number))
    except _NOT_THE_LINES_FAULT:
        raise
    except JumpForwardError as error:
        return error


def _has_ended(request: Handle | JumpForwardError) -> bool:
    return isinstance(request, JumpForwardError) or request.is_done


def _record(number: int, request: Handle | JumpForwardError) -> dict[str, Any]:
    """Wait for a request, and return what is written about it."""
    try:
        if isinstance(request, JumpForwardError):
            raise request
        return {"line": number, **request.result().record()}
    except _NOT_THE_LINES_FAULT:
        raise
    except JumpForwardError as error:
        return {"line": number, "error": {"type": type(error).__name__, "message": str(error)}}


def _lines(source: Path, num_done: int) -> Iterator[tuple[int, bytes]]:
    with source.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number > num_done:
                yield number, line


def _surveyed(source: Path) -> tuple[int, str]:
    """Return how many lines a file has, and a digest of it."""
    num_lines, digest = 0, hashlib.sha256()
    try:
        with source.open("rb") as file:
            for line in file:
                num_lines += 1
                digest.update(line)
    except OSError as error:
        raise OptionError("INPUT", str(source), f"a file that can be read ({error.strerror})") from error
    return num_lines, f"sha256:{digest.hexdigest()}"


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _fields(line: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError as error:  # bytes that are not UTF-8 too
        raise BadLineError(f"expected a JSON object, got {_shortened(line)}: {error}") from error
    if not isinstance(fields, dict):
        raise BadLineError(f"expected a JSON object, got {_shortened(line)}")
    return fields


def _shortened(line: bytes) -> str:
    text = line.decode(errors="replace").rstrip("\r\n")
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise BadLineError(f"expected a field {name!r}, got {', '.join(map(repr, fields)) or 'an empty object'}")
    return fields[name]


def _prompt_from(field: str | None, template: str | None) -> Callable[[Mapping[str, Any]], Any]:
    """Return what finds a line's prompt: text, or chat messages."""
    if template is None:
        return lambda fields: _field(fields, "prompt" if field is None else field)
    if field is not None:
        raise OptionError("--prompt-field", field, "nothing beside --prompt-template")
    try:
        compiled = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(template)
    except jinja2.TemplateError as error:
        raise OptionError("--prompt-template", template, f"a Jinja template ({error})") from error
    return partial(_rendered, compiled)


def _rendered(template: jinja2.Template, fields: Mapping[str, Any]) -> str:
    try:
        return template.render(fields)
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise BadLineError(f"the template of the prompt does not fit this line: {error}") from error


@contextmanager
def _shown(results: ResultFile, num_lines: int) -> Iterator[Callable[[], None]]:
    """Show a bar with rate and remaining time; give what moves it to where the results are."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(*_columns(), console=Console(stderr=True)) as progress:
        task = progress.add_task("lines", total=num_lines, completed=results.num_lines)

        def show() -> None:
            progress.update(task, completed=results.num_lines, description=_title(results.num_errors))

        yield show


def _title(num_errors: int) -> str:
    return "lines" if not num_errors else f"lines, {num_errors} bad"


def _columns() -> list[Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.2f}/s")

    return [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn()]
