"""One row of a call of ``model.generate``: the caller's processors, criteria and streamer, and its scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import xgrammar

from jumpforward.decoding.sampling import apply_masks
from jumpforward.engine.task import Task

if TYPE_CHECKING:
    from transformers import LogitsProcessorList, StoppingCriteriaList
    from transformers.generation.streamers import BaseStreamer


class RowProcessor:
    """Applies processors, which are made for a batch, to positions of one row; may keep what the model said there."""

    def __init__(self, input_ids: torch.Tensor, index: int, own: LogitsProcessorList, *, keeps: bool) -> None:
        """Take the batch's prompts with their padding, shape (rows, length), and the row's index in it."""
        self._input_ids = input_ids
        self._index = index
        self._own = own
        # By the index of the token that was chosen there: the model's logits, and what processors made of them. What
        # a draft that was rejected has left here is overwritten, since its position is asked about again.
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = {} if keeps else None

    def __call__(self, output_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """Return the processed logits behind an output, shape (width,)."""
        raw = logits.clone() if self._kept is not None else logits
        processed = self._processed(output_ids, logits) if self._own else logits
        if self._kept is not None:
            self._kept[len(output_ids)] = raw, processed.clone()
        return processed

    def _processed(self, output_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        # A processor may have something for each row of the batch, such as the length of its padding: every row is
        # this one here, and what comes out in its own place counts.
        num_rows = len(self._input_ids)
        new = self._input_ids.new_tensor(output_ids)
        ids = torch.cat([self._input_ids[self._index], new]).expand(num_rows, -1)
        scores = logits.to(ids.device).expand(num_rows, -1).clone()
        result: torch.Tensor = self._own(ids, scores)  # type: ignore[arg-type]
        return result[self._index].to(logits)

    def kept(self, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of the first tokens and the same processed, each of shape (num_tokens, width)."""
        if self._kept is None:
            raise RuntimeError("this processor keeps nothing")
        raw, processed = zip(*(self._kept[index] for index in range(num_tokens)), strict=True)
        return torch.stack(raw), torch.stack(processed)


class GeneratedRow:
    """Follows a request: shows its tokens to a streamer, and asks criteria behind every one of them."""

    def __init__(
        self, task: Task, prompt_ids: torch.Tensor, criteria: StoppingCriteriaList, streamer: BaseStreamer | None
    ) -> None:
        self._task = task
        self._prompt_ids = prompt_ids
        self._criteria: Any = criteria
        self._streamer = streamer
        self._num_seen = 0
        self._is_stopped = False

    def look(self) -> None:
        """Look at tokens that have become final; cancel the request behind one with which the criteria stop it."""
        if self._task.run is None or self._is_stopped:
            return
        sequence = self._task.sequence
        final = sequence.output_ids[: sequence.num_final]
        while self._num_seen < len(final) and not self._is_stopped:
            self._num_seen += 1
            if self._streamer is not None:
                self._streamer.put(torch.tensor([final[self._num_seen - 1]]))
            self._is_stopped = self._stops(final[: self._num_seen])
        self._task.is_cancelled = self._is_stopped

    def _stops(self, output_ids: Sequence[int]) -> bool:
        ids = torch.cat([self._prompt_ids, self._prompt_ids.new_tensor(output_ids)])[None]
        return bool(self._criteria(ids, None).all())

    def output_ids(self) -> list[int]:
        """Return the output of a request that has ended, or raise what ended it."""
        if self._is_stopped:
            return self._task.sequence.output_ids[: self._num_seen]
        return self._task.result().token_ids

    def scores(self, processed: torch.Tensor, output_ids: Sequence[int]) -> torch.Tensor:
        """Return processed logits (tokens, width) of an output as they were chosen from: masked and warped."""
        run = self._task.run
        if run is None:
            raise RuntimeError("the request has no run yet")
        matcher = run.matcher
        matcher.rollback(len(run.sequence.output_ids))
        bitmask = xgrammar.allocate_token_bitmask(len(output_ids), processed.shape[-1])
        for row, token in enumerate(output_ids):
            matcher.fill_bitmask(bitmask, row)
            matcher.consume(token)
        masked = processed.clone()
        apply_masks(masked, bitmask.to(masked.device))
        ids = torch.tensor([output_ids])
        scores: torch.Tensor = run.request.sampling.warpers()(ids, masked)  # type: ignore[arg-type]
        return scores
