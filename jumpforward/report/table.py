"""A table as text, whatever shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath

from rich.table import Table as RichTable


@dataclass
class Table:
    """A table.

    Attributes:
        title: what it shows.
        columns: the heads of its columns.
        note: how its numbers are meant.
        rows: its cells.
    """

    title: str
    columns: tuple[str, ...]
    note: str
    rows: list[list[str]] = field(default_factory=list)

    def is_number(self, column: int) -> bool:
        """Whether a column holds numbers, which are set to the right."""
        return all(row[column][:1].isdigit() or row[column][:1] in "+-" for row in self.rows)

    def view(self) -> RichTable:
        """Return the table for a terminal."""
        view = RichTable(title=self.title, caption=self.note, title_justify="left", caption_justify="left")
        for index, name in enumerate(self.columns):
            view.add_column(name, justify="right" if self.is_number(index) else "left")
        for row in self.rows:
            view.add_row(*row)
        return view


def percent(share: float) -> str:
    """Return a share as per cent with one decimal."""
    return f"{100 * share:.1f} %"


def short(tokenizer: str) -> str:
    """Return a tokenizer's name without the folders in front of it."""
    path = PurePath(tokenizer)
    return path.parent.name if path.name == "tokenizer.json" and path.parent.name else path.name
