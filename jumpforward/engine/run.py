"""One request from its prompt to its result.

A step is one forward pass over the uncached suffix of the sequence and a draft:

    COMMIT  write forced text, as far as the policy writes it without asking
    BUILD   walk the matcher along what is certain and what the drafters propose; fill a mask row a position
    FEED    one pass over suffix and draft; logits only where the model is asked
    CHOOSE  one batched mask, one choice a row
    SETTLE  keep what ordinary decoding would have made; crop the cache to it
"""

from __future__ import annotations

from collections.abc import Sequence as Ids

import torch
import xgrammar

from jumpforward.decoding.boundary import Boundary
from jumpforward.decoding.drafts import Draft, DraftBuilder, Drafter
from jumpforward.decoding.sampling import Sampler
from jumpforward.decoding.verify import Kept, verify
from jumpforward.engine.commit import Committer
from jumpforward.engine.request import Request
from jumpforward.engine.result import Result
from jumpforward.engine.runner import Runner
from jumpforward.engine.sequence import Sequence
from jumpforward.engine.text import whole_characters
from jumpforward.errors import BadLogitsError, EmptyMaskError, OptionError, TokenRejectedError
from jumpforward.matching.automaton import CompiledAutomaton
from jumpforward.matching.completing import CompletingMatcher
from jumpforward.matching.matcher import Matcher
from jumpforward.matching.pushdown import CompiledGrammar
from jumpforward.stats import Counters, Provenance


def _matcher(request: Request, compiled: CompiledAutomaton | CompiledGrammar, max_new_tokens: int) -> Matcher:
    """Return the request's matcher.

    Raises:
        OptionError: a complete output is to be ensured, and the grammar's shortest is not known, or has no room.
    """
    if not request.ensure_complete:
        return compiled.matcher()
    if not isinstance(compiled, CompiledAutomaton):
        raise OptionError("ensure_complete", True, "a regular grammar (regex or choice) that fits into an automaton")
    fewest = compiled.fewest_tokens
    if fewest is not None and max_new_tokens < fewest:
        raise OptionError("max_new_tokens", max_new_tokens, f"at least {fewest}, for the shortest complete output")
    return CompletingMatcher(compiled.matcher(), max_new_tokens)


class Run:
    """The state of one request. Shares nothing that changes with any other."""

    def __init__(
        self,
        request: Request,
        compiled: CompiledAutomaton | CompiledGrammar,
        runner: Runner,
        boundary: Boundary,
        drafters: Ids[Drafter],
        counters: Counters,
        *,
        max_draft: int,
    ) -> None:
        self.request = request
        self._runner = runner
        self._boundary = boundary
        self._counters = counters
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
        self.matcher = _matcher(request, compiled, max_new_tokens)
        self._cache = runner.new_cache()
        self._committer = Committer(
            request.policy, self.sequence, self.matcher, boundary, compiled.vocabulary, counters
        )
        self._sampler = Sampler(request.sampling)
        self._builder = DraftBuilder(
            drafters, counters, skips_certain=request.policy.skips_certain, max_draft=max_draft
        )
        self._bitmask = xgrammar.allocate_token_bitmask(max_draft + 1, runner.width)
        # The output index of the first line, and the log-probabilities of the last pass, shape (kept, width).
        self._asked: tuple[int, torch.Tensor] | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the sequence has ended."""
        return self.sequence.finish_reason is not None

    @torch.inference_mode()
    def step(self) -> None:
        """Make at least one token, with at most one forward pass.

        Raises:
            GenerationError: there is no legal token, or the model has no finite logit for one. Ids, text, matcher and
                cache are then those of the last token that was made.
        """
        self._commit()
        if not self.is_finished:
            sequence = self.sequence
            with self._counters.timed("mask"):
                draft = self._builder.build(
                    sequence.prompt_ids, sequence.output_ids, self.matcher, self._bitmask, sequence.num_left
                )
            self._settle(draft, verify(draft, self._ask(draft)))
        if self.is_finished:
            self._commit()

    def _commit(self) -> None:
        """Have the policy write what it writes by itself, and forget what was cached of tokens that it changed."""
        num_kept = self._committer.commit()
        self._crop(len(self.sequence.prompt_ids) + num_kept)

    def _crop(self, length: int) -> None:
        cached = self._cache.lengths[0]
        if cached > length:
            self._cache.crop(length)
            self._counters.num_cropped += cached - length

    def _ask(self, draft: Draft) -> dict[int, int | None]:
        """Return the model's choice for every open row of the draft; no pass where there is none."""
        rows = draft.open_rows
        if not rows:
            return {}
        if not draft.tokens and not self._bitmask[0].any():
            raise self._empty_mask()
        cached = self._cache.lengths[0]
        suffix = self.sequence.tokens_from(cached)
        chunk = [*suffix, *draft.tokens[: rows[-1]]]  # the last row's own token need not be fed
        row_zero = len(suffix) - 1  # the place in the chunk whose logits are those of row 0
        if self.request.logprobs:
            keep = list(range(max(0, len(self.sequence.prompt_ids) - 1 - cached), len(chunk)))
        else:
            keep = [row_zero + row for row in rows]
        logits = self._feed(chunk, keep)
        with self._counters.timed("choice"):
            if self.request.logprobs:
                first = cached + keep[0] + 1 - len(self.sequence.prompt_ids)
                self._asked = (first, torch.log_softmax(logits, dim=-1))
                logits = logits[[place - keep[0] for place in (row_zero + row for row in rows)]]
            return self._choose(rows, logits)

    def _feed(self, chunk: Ids[int], keep: Ids[int]) -> torch.Tensor:
        """Run the model over a chunk; return the logits at the places to keep, shape (kept, width)."""
        parts = []
        start = 0
        for piece in self._runner.pieces(self._cache, chunk):
            wanted = [place - start for place in keep if start <= place < start + len(piece)]
            with self._counters.timed("model"):
                parts.append(self._runner.forward(self._cache, [piece], [wanted])[0])
            self._counters.chunk_lengths[len(piece)] += 1
            start += len(piece)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _choose(self, rows: Ids[int], logits: torch.Tensor) -> dict[int, int | None]:
        num_output = len(self.sequence.output_ids)
        bitmask = self._bitmask[list(rows)].to(logits.device)
        chosen = self._sampler.choose(logits, bitmask, [num_output + row for row in rows])
        return dict(zip(rows, chosen, strict=True))

    def _settle(self, draft: Draft, kept: Ids[Kept]) -> None:
        """Append what is kept, and make the cache hold no more than that."""
        num_before = len(self.sequence.output_ids)
        try:
            for token, provenance in kept:
                if token is None:
                    raise self._bad_logits()
                self._append(token, provenance)
                if self.is_finished:
                    break
        finally:
            num_added = len(self.sequence.output_ids) - num_before
            drafted = sum(each.provenance is Provenance.DRAFTED for each in kept[:num_added])
            self._counters.num_proposed += draft.num_proposed
            self._counters.num_rejected += draft.num_proposed - drafted
            # The last token is never cached: it is fed for the logits behind it. A cache that cannot be cropped
            # need not be, since only certain tokens, which are never rejected, were drafted for it.
            if self._runner.no_rollback_reason is None:
                self._crop(len(self.sequence) - 1)
            self._note_logprobs()

    def _append(self, token: int, provenance: Provenance) -> None:
        if not self.matcher.consume(token):
            raise TokenRejectedError(
                f"the mask permits token {token} ({self._vocabulary.token_bytes[token]!r}) and the matcher refuses it; "
                "please report the grammar and the tokenizer",
                self._text(),
            )
        self.sequence.append(token, provenance)

    def _note_logprobs(self) -> None:
        """Take over the log-probabilities of the tokens that the last pass was about."""
        if self._asked is None:
            return
        first, logprobs = self._asked
        ids = self.sequence.output_ids
        for line, index in enumerate(range(first, min(len(ids), first + len(logprobs)))):
            if self.sequence.provenance[index] is not Provenance.RETOKENIZED:  # another token was the model's choice
                self.sequence.logprobs[index] = float(logprobs[line, ids[index]])
        self._asked = None

    def _text(self) -> str:
        return self.sequence.data.decode(errors="replace")

    def _empty_mask(self) -> EmptyMaskError:
        missing = self.matcher.missing_bytes()
        wanted = ", ".join(repr(bytes([value])) for value in missing[:8]) or "tokens that it does not have"
        return EmptyMaskError(
            f"behind {self._text()[-60:]!r} the grammar can only be completed with {wanted}, which the vocabulary "
            "cannot spell; use another tokenizer, or change the grammar",
            self._text(),
            missing,
        )

    def _bad_logits(self) -> BadLogitsError:
        return BadLogitsError(
            f"behind {self._text()[-60:]!r} every legal token has a logit of NaN or minus infinity: expected finite "
            f"logits from {type(self._runner.model).__name__} in {self._runner.model.dtype}; try another dtype",
            self._text(),
        )

    def _count_seams(self) -> None:
        """Note where the output is not canonical, and whether forcing has a part in it."""
        seams = self._boundary.find_seams(self.sequence.output_ids)
        if seams is None:
            return
        forces, provenance = self.request.policy.forces, self.sequence.provenance
        by_forcing = sum(forces and Provenance.FORCED in provenance[seam.start : seam.stop] for seam in seams)
        self._counters.num_seams_forced = by_forcing
        self._counters.num_seams_sampled = len(seams) - by_forcing

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
            finish_reason=sequence.finish_reason,
            complete=self.request.grammar.accepts(data) if stopped else self.matcher.is_accepting,
            logprobs=sequence.logprobs if self.request.logprobs else None,
            seed=self._sampler.seed,
            stats=self._counters.close(self.request.policy.name, len(sequence.prompt_ids), sequence.provenance),
            grammar=self.request.grammar,
        )
