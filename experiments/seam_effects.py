"""What a jump's tokens do to the model behind them, along one document.

The document's canonical tokens are fed once. At each jump a rule's tokens are then fed in the place of the canonical
ones, and behind them the document's text: what is left of a token that the jump has cut, encoded by itself, and the
canonical tokens of the value, up to where bytes are forced again. Everything in front of the jump is canonical, so
that the effect is that of one jump alone. All probabilities are under the grammar's mask.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import xgrammar
from rules import Rules, Tokens, runs

import jumpforward as jf
from jumpforward.engine.runner import Runner
from jumpforward.matching.compiler import GrammarCompiler
from jumpforward.matching.pushdown import CompiledGrammar

if TYPE_CHECKING:
    from documents import Document

NUM_DRAWS = 2000  # of documents again, for an interval
MAX_VALUE = 24  # tokens of a value that are looked at


@dataclass(frozen=True)
class Jump:
    """A place where bytes are forced, and what was written there.

    Attributes:
        start: the number of canonical tokens in front of it.
        forced: the bytes.
        outputs: for each rule the output behind the jump, from the document's first token on.
        draft: the canonical tokens of the forced bytes in context, which `exact` has verified.
    """

    start: int
    forced: bytes
    outputs: Mapping[str, Tokens]
    draft: Tokens


class Effect(NamedTuple):
    """What a jump did whose tokens are not all the document's.

    Attributes:
        kl_nats: KL(canonical || its own) of the next token at the first border that both have behind the jump; None
            where bytes are forced there.
        is_flip: whether the likeliest token is another there.
        value_nats: log-probability of the value as it is spelled behind the jump, less that of its canonical tokens
            from the last border in front of the jump's end; negative where the value became less likely.
        is_cut: whether the jump ended inside a token of the document.
    """

    kl_nats: float | None
    is_flip: bool
    value_nats: float
    is_cut: bool


class Draft(NamedTuple):
    """What greedy masked decoding says to the canonical tokens of forced text.

    Attributes:
        num_tokens: how many there are.
        num_confirmed: how many of them, and of the document's, it confirms.
        respelled: whether it then spells the forced text otherwise.
    """

    num_tokens: int
    num_confirmed: int
    respelled: bool


def jumps(rules: Rules, grammar: jf.Grammar, compiler: GrammarCompiler, ids: Tokens) -> Iterator[Jump]:
    """Give the jumps of a document."""
    for run in runs(grammar, compiler, rules.vocabulary, ids):
        outputs = {rule: (*run.left, *choose(run)) for rule, choose in rules.all.items()}
        rewrite = rules.boundary.rewrite(run.left, len(run.left), run.forced)
        if rewrite is not None:
            outputs["retokenize"] = (*run.left[: rewrite.num_kept], *rewrite.ids)
        yield Jump(len(run.left), run.forced, outputs, rules.boundary.spell(run.left, run.forced).ids)


class Along:
    """The model along one document."""

    def __init__(
        self, runner: Runner, rules: Rules, compiled: CompiledGrammar, prompt_ids: Sequence[int], ids: Tokens
    ) -> None:
        """Feed the prompt and the document's canonical tokens."""
        self._runner, self._rules, self._compiled = runner, rules, compiled
        self._token_bytes = rules.vocabulary.token_bytes
        self._num_prompt = len(prompt_ids)
        self.ids = ids
        self._ends = list(accumulate((len(self._token_bytes[token]) for token in ids), initial=0))
        self._cache = runner.new_cache()
        first = self._num_prompt - 1
        logits = runner.forward(self._cache, [[*prompt_ids, *ids]], [range(first, first + len(ids) + 1)])[0]
        self._rows = self._masked(logits, (), ids)

    def drafted(self, jump: Jump) -> Draft:
        """Return how far the model confirms the canonical tokens of forced text."""
        left = jump.forced
        for count, token in enumerate(jump.draft):
            if self.ids[jump.start + count : jump.start + count + 1] != (token,):
                return Draft(len(jump.draft), count, respelled=False)
            chosen = int(self._rows[jump.start + count].argmax())
            if chosen != token:
                return Draft(len(jump.draft), count, left.startswith(self._token_bytes[chosen]))
            left = left[len(self._token_bytes[token]) :]
        return Draft(len(jump.draft), len(jump.draft), respelled=False)

    def effect(self, output: Tokens, value_end: int) -> Effect | None:
        """Return what an output does whose last tokens are not the document's; None where its text ends in a character.

        Args:
            output: its tokens.
            value_end: the number of canonical tokens in front of the next forced bytes.
        """
        num_same = next(at for at, token in enumerate(output) if self.ids[at : at + 1] != (token,))
        end = len(self._rules.vocabulary.text_bytes(output))
        border = bisect_left(self._ends, end)
        rest = self._rest(end, self._ends[border])
        if rest is None:
            return None
        stop = max(border, min(value_end, border + MAX_VALUE))
        last = bisect_right(self._ends, end) - 1  # the last canonical border that is not behind the jump
        spelled = (*rest, *self.ids[border:stop])
        rows = self._fed(output, num_same, spelled)
        value_nats = _total(rows, spelled) - _total(self._rows[last:stop], self.ids[last:stop])
        if border >= value_end:
            return Effect(None, is_flip=False, value_nats=value_nats, is_cut=bool(rest))
        own, canonical = rows[len(rest)], self._rows[border]
        is_flip = int(own.argmax()) != int(canonical.argmax())
        return Effect(_kl_nats(canonical, own), is_flip, value_nats, is_cut=bool(rest))

    def _rest(self, start: int, stop: int) -> Tokens | None:
        """Return the tokens of some of the document's bytes by themselves."""
        data = self._rules.vocabulary.text_bytes(self.ids)[start:stop]
        return self._rules.encoder.encode(data) if data else ()

    def _fed(self, output: Tokens, num_same: int, behind: Tokens) -> torch.Tensor:
        """Return masked log-probabilities behind an output and each of the tokens after it: (1 + behind, width)."""
        cached = min(self._cache.lengths[0] - self._num_prompt, num_same)
        self._cache.crop(self._num_prompt + cached)
        chunk = (*self.ids[cached:num_same], *output[num_same:], *behind)
        first = len(chunk) - len(behind) - 1
        logits = self._runner.forward(self._cache, [chunk], [range(first, len(chunk))])[0]
        self._cache.crop(self._num_prompt + num_same)
        return self._masked(logits, output, behind)

    def _masked(self, logits: torch.Tensor, before: Tokens, behind: Tokens) -> torch.Tensor:
        """Return log-probabilities under the grammar's mask, from the place behind ``before`` on: float64."""
        matcher = self._compiled.matcher()
        bitmask = xgrammar.allocate_token_bitmask(len(behind) + 1, self._runner.width)
        for token in before:
            matcher.consume(token)
        for row, token in enumerate(behind):
            matcher.fill_bitmask(bitmask, row)
            if not matcher.consume(token):
                raise ValueError(f"expected a token of the document, got {token}, which its grammar refuses")
        matcher.fill_bitmask(bitmask, len(behind))
        xgrammar.apply_token_bitmask_inplace(logits, bitmask)
        return torch.log_softmax(logits.double(), dim=-1)


class Asked:
    """What the model says along documents: effects by rule and document, and what it confirms of drafts."""

    def __init__(self, engine: jf.Engine, rules: Rules, prompt_ids: Sequence[int], seed: int) -> None:
        """Ask nothing yet; ``seed`` is of the intervals."""
        self._engine, self._rules, self._seed = engine, rules, seed
        self._runner = Runner(engine.model)
        self._prompt_ids = prompt_ids
        self.effects: dict[str, list[list[Effect]]] = {rule: [] for rule in rules.all}
        self.drafts: list[list[Draft]] = []
        self.num_tokens = self.num_jumps = self.num_skipped = 0

    @property
    def num_documents(self) -> int:
        """How many documents it was asked along."""
        return len(self.drafts)

    def has_room(self, document: Document, max_tokens: int) -> bool:
        """Return whether a document has canonical tokens, and neither too many nor more than the model takes."""
        ids = self._rules.encoder.encode(document.data)
        room = self._runner.max_length - len(self._prompt_ids) - 2 * MAX_VALUE
        return ids is not None and len(ids) <= min(max_tokens, room)

    def add(self, document: Document) -> None:
        """Ask along a document."""
        ids = self._rules.encoder.encode(document.data)
        found = list(jumps(self._rules, document.grammar, self._engine.compiler, ids))
        compiled = self._engine.compiler.pushdown(document.grammar)
        along = Along(self._runner, self._rules, compiled, self._prompt_ids, ids)
        self.drafts.append([along.drafted(jump) for jump in found])
        self.num_tokens += len(ids)
        self.num_jumps += len(found)
        for effects in self.effects.values():
            effects.append([])
        ends = [*(jump.start for jump in found[1:]), len(ids)]
        for jump, value_end in reversed(
            list(zip(found, ends, strict=True))
        ):  # so that the cache is cut, and not refilled
            self._add_effects(along, jump, value_end)

    def _add_effects(self, along: Along, jump: Jump, value_end: int) -> None:
        seen: dict[Tokens, Effect | None] = {}
        for rule, output in jump.outputs.items():
            if along.ids[: len(output)] == output:
                continue
            if output not in seen:
                seen[output] = along.effect(output, value_end)
            effect = seen[output]
            if effect is None:
                self.num_skipped += 1
            else:
                self.effects[rule][-1].append(effect)

    def summary(self, rule: str) -> dict[str, Any]:
        """Return a rule's effects: of the jumps with a wrong token, and over all."""
        documents = self.effects[rule]
        free = [[each for each in effects if each.kl_nats is not None] for effects in documents]
        values = [effect.value_nats for effects in documents for effect in effects]
        return {
            "num_wrong_jumps": len(values),
            "num_cut_tokens": sum(effect.is_cut for effects in documents for effect in effects),
            "num_compared": sum(map(len, free)),
            "kl_nats_mean": self._mean([[each.kl_nats for each in effects] for effects in free]),
            "kl_nats_median": _median([each.kl_nats for effects in free for each in effects]),
            "flip_share": self._mean([[float(each.is_flip) for each in effects] for effects in free]),
            "value_nats_mean": self._mean([[each.value_nats for each in effects] for effects in documents]),
            "value_nats_median": _median(values),
            "value_lost_share": round(sum(value < 0 for value in values) / len(values), 4) if values else None,
            "value_nats_a_jump": round(sum(values) / max(1, self.num_jumps), 4),
            "value_nats_a_document": round(sum(values) / max(1, self.num_documents), 3),
        }

    def _mean(self, documents: Sequence[Sequence[float]]) -> dict[str, Any] | None:
        """Return a mean over jumps, and an interval from drawing documents again."""
        sums, counts = np.array([sum(each) for each in documents]), np.array([len(each) for each in documents])
        if not counts.sum():
            return None
        generator = np.random.default_rng(self._seed)
        drawn_again = generator.integers(len(documents), size=(NUM_DRAWS, len(documents)))
        totals = counts[drawn_again].sum(axis=1)
        means = sums[drawn_again].sum(axis=1)[totals > 0] / totals[totals > 0]
        low, high = np.quantile(means, (0.025, 0.975))
        return {"mean": round(sums.sum() / counts.sum(), 4), "low": round(float(low), 4), "high": round(float(high), 4)}

    def exact(self) -> dict[str, Any]:
        """Return what greedy masked decoding confirms of the canonical tokens of forced text."""
        drafts = [draft for document in self.drafts for draft in document]
        respelled = sum(draft.respelled for draft in drafts)
        canonical = sum(not any(draft.respelled for draft in document) for document in self.drafts)
        return {
            "num_jumps": len(drafts),
            "num_draft_tokens": sum(draft.num_tokens for draft in drafts),
            "num_confirmed": sum(draft.num_confirmed for draft in drafts),
            "confirmed_share_of_tokens": round(
                sum(draft.num_confirmed for draft in drafts) / max(1, self.num_tokens), 4
            ),
            "num_respelled_jumps": respelled,
            "respelled_share_of_jumps": round(respelled / max(1, len(drafts)), 4),
            "canonical_share_of_documents": round(canonical / max(1, self.num_documents), 4),
        }


def _median(values: Sequence[float]) -> float | None:
    return round(float(np.median(values)), 4) if values else None


def _total(rows: torch.Tensor, tokens: Sequence[int]) -> float:
    """Return the log-probability of tokens, each in its row."""
    return float(sum(row[token] for row, token in zip(rows, tokens, strict=False)))


def _kl_nats(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return KL(first || second) of two rows of log-probabilities over the same legal tokens."""
    legal = torch.isfinite(first)
    return float((first[legal].exp() * (first[legal] - second[legal])).sum())
