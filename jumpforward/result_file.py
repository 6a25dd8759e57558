"""A file of results that outlives the process: one JSON object a line, in order, whatever kills the writer and when.

Lines are only appended, and are on the disk before more are made. What a file was begun with is written beside it
first, in FILE.job, so that nothing else goes on with it. A process that is killed leaves at most one torn line, the
last, which the next one cuts off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from jumpforward.errors import OptionError


class ResultFile:
    """Results in the order of their lines, of a job that may have been begun before.

    Use it in a ``with`` block; two processes cannot have the same file at a time.

    Attributes:
        num_lines: how many results it holds.
        num_errors: how many of them have the key ``"error"``.
    """

    def __init__(self, path: Path, job: Mapping[str, Any]) -> None:
        """Name the file, and by option all that its content depends on, as values that JSON has."""
        self.num_lines = 0
        self.num_errors = 0
        self._path = path
        self._job = dict(job)
        self._job_path = path.with_name(path.name + ".job")
        self._lock = FileLock(path.with_name(path.name + ".lock"))

    def __enter__(self) -> ResultFile:
        """Open the file and count what is in it.

        Raises:
            OptionError: it is no such file, was begun by another job, is being written, or cannot be.
        """
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise OptionError("OUTPUT", str(self._path), "a file that no other process is writing") from error
        except OSError as error:
            raise OptionError("OUTPUT", str(self._path), f"a file that can be written ({error.strerror})") from error
        try:
            self._begin()
            self._file = self._path.open("r+b")
            self._recover()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()
        self._lock.release()

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records, each a JSON object with ``"line"``, its number from 1. They are on the disk afterwards."""
        for record in records:
            self._count(record)
            # Half a character, which a message may quote, becomes the escape that JSON has for it.
            line = json.dumps(record, ensure_ascii=False).encode(errors="backslashreplace")
            self._file.write(line + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _begin(self) -> None:
        """Make sure that the file is this job's."""
        if self._job_path.exists():
            self._compare(json.loads(self._job_path.read_bytes()))
        elif self._path.exists() and self._path.stat().st_size:
            raise OptionError("OUTPUT", str(self._path), "a new file, or one that was begun with the same arguments")
        else:
            _write_whole(self._job_path, json.dumps(self._job).encode())
        self._path.touch()

    def _compare(self, begun: Mapping[str, Any]) -> None:
        for option in dict.fromkeys([*begun, *self._job]):
            if begun.get(option) != self._job.get(option):
                expected = f"{begun.get(option)!r}, with which {self._path} was begun; or another OUTPUT"
                raise OptionError(option, self._job.get(option), expected)

    def _recover(self) -> None:
        """Count whole lines, and cut off one that is not."""
        end = 0
        for line in self._file:
            if line.endswith(b"\n"):
                self._count(self._parsed(line))
                end += len(line)
        self._file.seek(end)
        self._file.truncate()

    def _parsed(self, line: bytes) -> Mapping[str, Any]:
        try:
            record = json.loads(line)
            if record["line"] == self.num_lines + 1:
                return dict(record)
        except (ValueError, TypeError, KeyError):
            pass  # said below, with where it is
        expected = f"a result of line {self.num_lines + 1} there; the file was changed: use another OUTPUT"
        raise OptionError(f"{self._path}:{self.num_lines + 1}", line[:60].decode(errors="replace"), expected)

    def _count(self, record: Mapping[str, Any]) -> None:
        self.num_lines += 1
        self.num_errors += "error" in record


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all."""
    unfinished = path.with_name(path.name + ".new")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
