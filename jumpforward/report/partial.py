"""Partial results on disk: one line a schema, so that an interrupted report goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self

import jumpforward
from jumpforward.errors import OptionError
from jumpforward.report.results import SchemaResult
from jumpforward.report.settings import Options

_FORMAT = "jumpforward.report.partial"
_BLOCK_BYTES = 1 << 20


def fingerprint(corpus: Path, options: Options) -> str:
    """Return what the results depend on as a short text: the corpus's bytes, the options, the program's version."""
    digest = hashlib.sha256()
    files = sorted(path for path in corpus.rglob("*") if path.is_file()) if corpus.is_dir() else [corpus]
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    digest.update(f"{jumpforward.__version__}\0{options.model_dump_json()}".encode())
    return digest.hexdigest()[:32]


class Partial:
    """A file of results. Holds the places of its lines in memory, and not the lines.

    Attributes:
        path: the file.
        num_kept: results that were there when it was opened.
        is_other: whether results of other arguments were there, and were thrown away.
    """

    def __init__(self, path: Path, key: str) -> None:
        """Open the file, or begin it. A last line that was not written to its end is cut off.

        Raises:
            OptionError: the file cannot be written.
        """
        self.path = path
        self._places: dict[int, int] = {}
        try:
            self._file: BinaryIO = path.open("r+b" if path.exists() else "w+b")
        except OSError as error:
            raise OptionError("output", str(path), f"a file that can be written ({error.strerror})") from error
        header = json.dumps({"format": _FORMAT, "key": key}).encode() + b"\n"
        first = self._file.readline()
        self.is_other = bool(first) and first != header
        if first == header:
            self._read()
        else:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(header)
            self._file.flush()
        self.num_kept = len(self._places)

    def _read(self) -> None:
        place = self._file.tell()
        while line := self._file.readline():
            if not line.endswith(b"\n"):
                break
            self._places[SchemaResult.model_validate_json(line).index] = place
            place = self._file.tell()
        self._file.truncate(place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __contains__(self, index: int) -> bool:
        return index in self._places

    def append(self, result: SchemaResult) -> None:
        """Write a result; it is in the file when this returns."""
        self._places[result.index] = self._file.seek(0, 2)
        self._file.write(result.model_dump_json().encode() + b"\n")
        self._file.flush()

    def results(self) -> Iterator[SchemaResult]:
        """Yield the results in the order of the corpus, one in memory at a time."""
        for index in sorted(self._places):
            self._file.seek(self._places[index])
            yield SchemaResult.model_validate_json(self._file.readline())

    def remove(self) -> None:
        """Delete the file."""
        self._file.close()
        self.path.unlink(missing_ok=True)
