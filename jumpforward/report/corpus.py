"""Corpora: rows of schemas with their instances, read one by one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from jumpforward.errors import OptionError

_INSTANCES = ("valid", "instances")
_GROUPS = ("split", "group")


class Row(BaseModel):
    """A schema of a corpus.

    Attributes:
        index: its place in the corpus, from 0.
        id: its name.
        group: what it is pooled with; empty where the corpus has no groups.
        schema_: the schema, as JSON.
        instances: documents as JSON values.
        texts: documents as they were written.
        problem: why there is no schema, where there is none.
    """

    index: int
    id: str
    group: str = ""
    schema_: Any = None
    instances: list[Any] = []
    texts: list[str] = []
    problem: str | None = None


def num_rows(path: Path) -> int:
    """Return how many rows a corpus has, reading no JSON.

    Raises:
        OptionError: there is none.
    """
    if path.is_dir():
        return len(_schema_files(path))
    if _is_lines(path):
        return sum(1 for line in _lines(path) if line.strip())
    if not path.is_file():
        raise OptionError("CORPUS", str(path), "a JSONL file, a folder of JSON Schema files, or one schema file")
    return 1


def rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a corpus.

    A JSONL file has an object a line: ``schema``, and if given ``id``, ``split`` or ``group``, and ``valid`` or
    ``instances``, a list. In a folder the schemas are ``NAME.schema.json``, or all ``NAME.json`` where no file is
    named so; the instances of one are the files ``NAME/*.json`` and the lines of ``NAME.jsonl``. A row that cannot be
    read says so in ``problem``.
    """
    if path.is_dir():
        yield from (_file_row(index, file) for index, file in enumerate(_schema_files(path)))
    elif _is_lines(path):
        lines = (line for line in _lines(path) if line.strip())
        yield from (_line_row(index, line) for index, line in enumerate(lines))
    else:
        yield _file_row(0, path)


def limited(found: Iterable[Row], limit: int | None) -> Iterator[Row]:
    """Return the first rows; all of them without a limit."""
    return islice(found, limit)


def _is_lines(path: Path) -> bool:
    return path.suffix in (".jsonl", ".ndjson") and path.is_file()


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError("CORPUS", str(path), f"a text file that can be read ({error})") from error


def _line_row(index: int, line: str) -> Row:
    name = f"row {index + 1}"
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        return Row(index=index, id=name, problem=f"not JSON: {error}")
    name = str(value.get("id", name)) if isinstance(value, dict) else name
    if not isinstance(value, dict) or "schema" not in value:
        return Row(index=index, id=name, problem="expected an object with a schema in it")
    instances: Any = next((value[key] for key in _INSTANCES if key in value), [])
    group = next((str(value[key]) for key in _GROUPS if key in value), "")
    row = Row(index=index, id=name, group=group, schema_=value["schema"])
    if not isinstance(instances, list):
        return row.model_copy(update={"problem": "expected a list of instances"})
    return row.model_copy(update={"instances": instances})


def _schema_files(folder: Path) -> list[Path]:
    named = sorted(folder.glob("*.schema.json"))
    return named or sorted(folder.glob("*.json"))


def _file_row(index: int, path: Path) -> Row:
    name = path.name.removesuffix(".json").removesuffix(".schema")
    row = Row(index=index, id=name)
    instances: list[Any]
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
        instances = list(_instance_values(path.parent, name))
    except (OSError, ValueError, RecursionError) as error:
        return row.model_copy(update={"problem": f"not JSON that can be read: {error}"})
    return row.model_copy(update={"schema_": schema, "instances": instances})


def _instance_values(folder: Path, name: str) -> Iterator[Any]:
    for file in sorted((folder / name).glob("*.json")):
        yield json.loads(file.read_text(encoding="utf-8"))
    lines = folder / f"{name}.jsonl"
    if lines.is_file():
        yield from (json.loads(line) for line in _lines(lines) if line.strip())
