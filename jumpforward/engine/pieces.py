"""One request alone, step by step in the caller's thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from jumpforward.engine.loop import Loop
from jumpforward.engine.result import Result
from jumpforward.engine.task import Task
from jumpforward.engine.text import TextStream

if TYPE_CHECKING:
    from transformers.generation.streamers import BaseStreamer


class TextPieces:
    """An iterator over the certain pieces of a text that is being made.

    Attributes:
        result: the result, once the iterator is exhausted; None before.
    """

    def __init__(self, task: Task, loop: Loop, streamer: BaseStreamer | None) -> None:
        self.result: Result | None = None
        self._pieces = self._make(task, loop, streamer)

    def __iter__(self) -> TextPieces:
        """Return itself."""
        return self

    def __next__(self) -> str:
        """Return the next piece, which is not empty."""
        return next(self._pieces)

    def _make(self, task: Task, loop: Loop, streamer: BaseStreamer | None) -> Iterator[str]:
        text = TextStream(task.sequence)
        for _ in steps(task, loop, streamer):
            if piece := text.new_text():
                yield piece
        self.result = task.result()


def steps(task: Task, loop: Loop, streamer: BaseStreamer | None = None) -> Iterator[None]:
    """Step a loop until a task in it has ended, telling a transformers streamer of every token."""
    sequence = task.sequence
    if streamer is not None:
        streamer.put(torch.tensor([sequence.prompt_ids]))
    num_told = 0
    while task.outcome is None:
        loop.step()
        final = sequence.output_ids[num_told : sequence.num_final]
        num_told += len(final)
        if streamer is not None and final:
            streamer.put(torch.tensor(final))
        yield
    if streamer is not None and not isinstance(task.outcome, Exception):
        streamer.end()
