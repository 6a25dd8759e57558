"""One forward pass over pieces of several runs, and one choice for all of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import torch

from jumpforward.decoding.sampling import choose_tokens
from jumpforward.engine.run import Piece, Run
from jumpforward.engine.runner import Runner
from jumpforward.stats import timed_together


class Answer(NamedTuple):
    """What the model says to a run: the arguments of :meth:`Run.take`."""

    piece: Piece
    chosen: list[int | None]
    logprobs: torch.Tensor | None
    scores: torch.Tensor | None


def ask(runner: Runner, runs: Sequence[Run], num_tokens: Sequence[int]) -> list[Answer]:
    """Feed each run that many tokens of what it has prepared; return what it is to :meth:`Run.take`.

    ``runs`` are in rows of one cache, in the order of the rows. If this fails, the runs are as before, save that a
    cache which cannot be cropped may have moved on.
    """
    pieces = [run.piece(count) for run, count in zip(runs, num_tokens, strict=True)]
    cached = [run.row.length for run in runs]
    start_s = perf_counter()
    try:
        answers = _answers(runner, runs, pieces)
    except BaseException:
        for run, length in zip(runs, cached, strict=True):
            if run.row.length != length and runner.no_rollback_reason is None:
                run.row.crop(length)
        raise
    lengths = [len(piece.ids) for piece in pieces]
    runs[0].costs.observe(sum(lengths) if runner.packs else len(runs) * max(lengths), perf_counter() - start_s)
    for run, piece in zip(runs, pieces, strict=True):
        run.counters.chunk_lengths[len(piece.ids)] += 1
    return answers


def _answers(runner: Runner, runs: Sequence[Run], pieces: Sequence[Piece]) -> list[Answer]:
    accounts = [run.counters for run in runs]
    with timed_together(accounts, "model"):
        logits = runner.forward(
            runs[0].row.cache,
            [piece.ids for piece in pieces],
            [piece.keep for piece in pieces],
            [run.row.index for run in runs],
        )
    for run in runs:  # a GPU is still at work, and waits for none of this
        run.complete_masks()
    with timed_together(accounts, "choice"):
        wants = [run.request.logprobs for run in runs]
        # Before choosing, which overwrites the logits.
        logprobs = [kept.log_softmax(-1) if wanted else None for kept, wanted in zip(logits, wants, strict=True)]
        chosen, scores = _choose(runs, pieces, logits)
    return [Answer(*answer) for answer in zip(pieces, chosen, logprobs, scores, strict=True)]


def _choose(
    runs: Sequence[Run], pieces: Sequence[Piece], logits: Sequence[torch.Tensor]
) -> tuple[list[list[int | None]], list[torch.Tensor | None]]:
    """Return for each run the model's choice at each row of its piece, and what it was drawn from, if it was."""
    if not any(piece.rows for piece in pieces):
        return [[] for _ in pieces], [None for _ in pieces]
    asked = [
        kept if len(kept) == len(piece.asked) else kept[[place - piece.keep[0] for place in piece.asked]]
        for piece, kept in zip(pieces, logits, strict=True)
    ]
    lines = [_processed(*each) for each in zip(runs, pieces, asked, strict=True)]
    masks = [run.masks_at(piece.rows) for run, piece in zip(runs, pieces, strict=True)]
    requests = []
    for run, piece in zip(runs, pieces, strict=True):
        num_output = len(run.sequence.output_ids)
        requests.append((run.sampler, [num_output + row for row in piece.rows]))
    joined = _joined(lines)
    chosen = choose_tokens(joined, _joined(masks).to(joined.device), requests)
    parts = torch.split(joined, [len(piece.rows) for piece in pieces])
    return chosen, [None if run.sampler.seed is None else part for run, part in zip(runs, parts, strict=True)]


def _processed(run: Run, piece: Piece, logits: torch.Tensor) -> torch.Tensor:
    """Return the logits of a piece's rows as the request's own processor leaves them."""
    processor = run.request.processor
    if processor is None or not piece.rows:
        return logits
    return torch.stack([processor(*each) for each in zip(run.outputs_at(piece.rows), logits, strict=True)])


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
