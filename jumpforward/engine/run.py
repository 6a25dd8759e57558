"""One request from its prompt to its result, in phases between which others may take their turn.

A step is one forward pass over the uncached suffix of the sequence and a draft:

    COMMIT  write forced text, as far as the policy writes it without asking
    BUILD   walk the matcher along what is certain and what the drafters propose; fill the mask rows that decide it
    FEED    one pass over suffix and draft, of this request and others; logits only where the model is asked; the
            other mask rows are filled behind its launch
    CHOOSE  one batched mask, one choice a row
    SETTLE  keep what ordinary decoding would have made; crop the cache to it

``prepare`` commits and builds, ``piece`` is what is fed, and ``take`` settles. Where there is no room for all of it
in one pass it is fed in pieces, and settled behind the last.

The one order that must hold: a mask reflects every accepted token before it is used to choose. Masks are filled in
``prepare``, and in ``complete_masks`` where nobody had to look at them before, from a matcher that stands at the end of
``sequence``; they are used up in the next ``take`` that settles. Nothing moves the sequence or the matcher in between,
save along the draft and back.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass

import torch
import xgrammar

from jumpforward.decoding.boundary import Boundary
from jumpforward.decoding.drafter import Drafter, DraftRequest
from jumpforward.decoding.drafts import Draft, DraftBuilder
from jumpforward.decoding.masks import DraftMasks
from jumpforward.decoding.pace import Pace
from jumpforward.decoding.sampling import Sampler
from jumpforward.decoding.verify import Kept, count, verify
from jumpforward.engine import failures
from jumpforward.engine.commit import Committer
from jumpforward.engine.request import Request
from jumpforward.engine.result import Result
from jumpforward.engine.runner import Row, Runner
from jumpforward.engine.sequence import Sequence
from jumpforward.engine.text import whole_characters
from jumpforward.matching.automaton import CompiledAutomaton
from jumpforward.matching.pushdown import CompiledGrammar
from jumpforward.stats import Counters, Provenance


@dataclass(frozen=True)
class Piece:
    """What a run is fed in one pass.

    Attributes:
        ids: the tokens that follow what is cached.
        rows: the mask rows at which the model is asked.
        asked: for each of them, the place in ``ids`` behind which it stands.
        keep: the places behind which logits are wanted, ascending; all those asked are among them.
    """

    ids: Ids[int]
    rows: Ids[int]
    asked: Ids[int]
    keep: Ids[int]


class Run:
    """The state of one request. Shares nothing that changes with any other.

    Attributes:
        request: what is asked for.
        sequence: prompt and output.
        matcher: the output's place in the grammar.
        row: where the sequence is cached: a beginning of it, and between :meth:`take` and :meth:`take` of the pieces
            of a draft that draft's beginning too.
        sampler: what draws its tokens.
        counters: its account.
        costs: what passes cost.
        num_sharing: how many requests share its passes; the loop says so.
    """

    def __init__(
        self,
        request: Request,
        compiled: CompiledAutomaton | CompiledGrammar,
        runner: Runner,
        boundary: Boundary,
        drafters: Ids[Drafter],
        counters: Counters,
        row: Row,
        *,
        pace: Pace,
        max_draft: int,
    ) -> None:
        self.request = request
        self.counters = counters
        self.row = row
        self._runner = runner
        self._boundary = boundary
        self._vocabulary = compiled.vocabulary
        room = runner.max_length - len(request.prompt_ids)
        max_new_tokens = min(request.max_new_tokens, room)
        self.sequence = Sequence(
            request.prompt_ids,
            compiled.vocabulary,
            max_new_tokens=max_new_tokens,
            stop=request.stop,
            num_healed_bytes=len(request.healed.encode()),
        )
        self.matcher = request.matcher(compiled, max_new_tokens)
        self._committer = Committer(
            request.policy, self.sequence, self.matcher, boundary, compiled.vocabulary, counters
        )
        self.sampler = Sampler(request.sampling)
        self._builder = DraftBuilder(
            drafters,
            DraftRequest(request.prompt_ids, request.matched, compiled.vocabulary, self.sampler),
            pace,
            counters,
            skips_certain=request.policy.skips_certain,
            max_draft=max_draft,
            written=self._committer.stable if request.policy.commits_stable else None,
        )
        self.costs = pace.costs
        self.num_sharing = 1
        self._masks = DraftMasks(xgrammar.allocate_token_bitmask(max_draft + 1, runner.width))
        self._draft: Draft | None = None  # what is to be fed; and the model's choices for its rows so far
        self._choices: dict[int, int | None] = {}
        self._scores: dict[int, torch.Tensor] = {}
        # The output index of the first line, and log-probabilities, shape (kept, width), of each piece.
        self._asked: list[tuple[int, torch.Tensor]] = []

    @property
    def is_finished(self) -> bool:
        """Whether the sequence has ended."""
        return self.sequence.finish_reason is not None

    @property
    def is_prefill(self) -> bool:
        """Whether a part of the prompt is not cached yet."""
        return self.row.length < len(self.sequence.prompt_ids)

    def prepare(self) -> int:
        """Go on until the model must be asked; return how many tokens it must be fed first. 0: the run has finished.

        What was prepared stays until it has been fed, however often this is called.

        Raises:
            GenerationError: there is no legal token. Ids, text, matcher and cache are then those of the last token.
        """
        while not self.is_finished:
            draft = self._draft = self._draft or self._next_draft()
            if draft is None:
                break
            if draft.open_rows:
                return len(self.sequence) + draft.open_rows[-1] - self.row.length
            self._settle(draft)
        return 0

    def _next_draft(self) -> Draft | None:
        """Commit, and build a draft behind that; None where committing has ended the sequence."""
        self._commit()
        if self.is_finished:
            self._commit()
            return None
        sequence = self.sequence
        with self.counters.timed("mask"):
            draft = self._builder.build(
                sequence.output_ids, self.matcher, self._masks, sequence.num_left, self.num_sharing
            )
        if not draft.tokens and draft.has_next and self._masks.is_dead_end(0):
            raise failures.empty_mask(self.text, self.matcher)
        return draft

    def _commit(self) -> None:
        """Have the policy write what it writes by itself; behind the end, have it bring the output into final form."""
        num_kept = self._committer.commit()
        self._crop(len(self.sequence.prompt_ids) + num_kept)

    def piece(self, num_tokens: int) -> Piece:
        """Return the next ``num_tokens`` of what :meth:`prepare` asked to be fed."""
        draft = self._pending()
        cached, len_sequence = self.row.length, len(self.sequence)
        end = cached + num_tokens
        # The last open row's own token need not be fed.
        ids = [*self.sequence.tokens_from(cached), *draft.tokens[max(0, cached - len_sequence) :]][:num_tokens]
        at_row_zero = len_sequence - 1  # the place in the sequence behind which row 0 stands
        rows = [row for row in draft.open_rows if cached <= at_row_zero + row < end]
        asked = [at_row_zero + row - cached for row in rows]
        if not self.request.logprobs:
            return Piece(ids, rows, asked, asked)
        return Piece(ids, rows, asked, range(max(0, len(self.sequence.prompt_ids) - 1 - cached), num_tokens))

    def take(
        self, piece: Piece, chosen: Ids[int | None], logprobs: torch.Tensor | None, scores: torch.Tensor | None
    ) -> None:
        """Take what the model says to a piece that is cached by now; settle once all that was prepared is.

        Args:
            piece: what was fed.
            chosen: the model's choice for each of the piece's rows.
            logprobs: log-probabilities behind the places that the piece keeps, shape (kept, width), if requested.
            scores: the masked logits that the choices were drawn from, shape (rows, width); None where none was.

        Raises:
            GenerationError: no token is legal, or the model has no finite logit for one that is. Ids, text, matcher
                and cache are then those of the last token that was made.
        """
        draft = self._pending()
        self._choices.update(zip(piece.rows, chosen, strict=True))
        if scores is not None:
            self._scores.update(zip(piece.rows, scores, strict=True))
        if logprobs is not None and piece.keep:
            first = self.row.length - len(piece.ids) + piece.keep[0] + 1 - len(self.sequence.prompt_ids)
            self._asked.append((first, logprobs))
        if self.row.length >= len(self.sequence) + draft.open_rows[-1]:
            self._settle(draft)

    def complete_masks(self) -> None:
        """Fill what is left of the masks of what is prepared: all rows that will be asked about are there then."""
        with self.counters.timed("mask"):
            self._masks.complete(self._pending().tokens, self.matcher)

    def masks_at(self, rows: Ids[int]) -> torch.Tensor:
        """Return what is legal at these rows of what is prepared: int32, shape (rows, ceil(width / 32))."""
        return self._masks.bitmask[list(rows)]

    def outputs_at(self, rows: Ids[int]) -> list[list[int]]:
        """Return the output in front of each of these rows of what is prepared."""
        tokens = self._pending().tokens
        return [[*self.sequence.output_ids, *tokens[:row]] for row in rows]

    def _pending(self) -> Draft:
        if self._draft is None:
            raise RuntimeError("nothing is prepared")
        return self._draft

    def _settle(self, draft: Draft) -> None:
        """Append what is kept of a draft, and make the cache hold no more than that."""
        num_before = len(self.sequence.output_ids)
        choices, scores = self._choices, self._scores
        kept = verify(draft, choices)
        self._draft, self._choices, self._scores = None, {}, {}
        try:
            for row, each in enumerate(kept):
                self._append(each, row)
                if self.is_finished:
                    break
        finally:
            kept = kept[: len(self.sequence.output_ids) - num_before]
            count(draft, kept, self.counters)
            self._crop(len(self.sequence) - 1)  # the last token is fed for what comes behind it
            self._note_logprobs()
        self._builder.learn(draft, self.sequence.output_ids, choices, len(kept), scores)
        if self.is_finished:
            self._commit()

    def _crop(self, length: int) -> None:
        """Make the cache hold no more than the sequence's first ``length`` tokens."""
        # A cache that cannot be cropped need not be: only certain tokens, which are never rejected, are drafted then.
        if self._runner.no_rollback_reason is None and self.row.length > length:
            self.counters.num_cropped += self.row.length - length
            self.row.crop(length)

    def _append(self, kept: Kept, row: int) -> None:
        if kept.token is None and self._masks.is_dead_end(row):
            raise failures.empty_mask(self.text, self.matcher)
        if kept.token is None:
            raise failures.bad_logits(self.text, self._runner.model)
        if not self.matcher.consume(kept.token):
            raise failures.token_rejected(self.text, kept.token, self._vocabulary.token_bytes[kept.token])
        self.sequence.append(kept.token, kept.provenance, kept.source)

    def _note_logprobs(self) -> None:
        """Take over the log-probabilities of the tokens that the last passes were about."""
        ids = self.sequence.output_ids
        for first, logprobs in self._asked:
            for line, index in enumerate(range(first, min(len(ids), first + len(logprobs)))):
                if self.sequence.provenance[index] is not Provenance.RETOKENIZED:  # the model chose another
                    self.sequence.logprobs[index] = float(logprobs[line, ids[index]])
        self._asked = []

    @property
    def text(self) -> str:
        """The output so far, for messages."""
        return self.sequence.data.decode(errors="replace")

    def close(self) -> None:
        """Let go of what drafts came from, which may hold caches of its own."""
        self._builder.close()

    def _count_seams(self) -> None:
        """Note where the output is not canonical, and whether forcing has a part in it."""
        seams = self._boundary.find_seams(self.sequence.output_ids)
        if seams is None:
            return
        forces, provenance = self.request.policy.forces, self.sequence.provenance
        by_forcing = sum(forces and Provenance.FORCED in provenance[seam.start : seam.stop] for seam in seams)
        self.counters.num_seams_forced = by_forcing
        self.counters.num_seams_sampled = len(seams) - by_forcing

    def result(self) -> Result:
        """Return the result of a finished run."""
        sequence = self.sequence
        if sequence.finish_reason is None:
            raise RuntimeError("the run has not finished")
        self._count_seams()
        # A stop string cuts the text, so that the matcher's place no longer says whether it is complete.
        stopped = sequence.finish_reason == "stop"
        data = bytes(sequence.data)
        return Result(
            text=whole_characters(data),
            healed=self.request.healed,
            token_ids=sequence.output_ids,
            provenance=sequence.provenance,
            sources=sequence.sources,
            finish_reason=sequence.finish_reason,
            complete=self.request.grammar.accepts(data) if stopped else self.matcher.is_accepting,
            logprobs=sequence.logprobs if self.request.logprobs else None,
            seed=self.sampler.seed,
            stats=self.counters.close(self.request.policy.name, len(sequence.prompt_ids), sequence.provenance),
            grammar=self.request.grammar,
        )
