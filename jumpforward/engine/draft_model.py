"""A small model as a source of drafts.

It runs ahead of the model token by token, each under the mask of its place, which the walk along the draft has filled
anyway: it never drafts what the grammar forbids. Drawn tokens are drawn with the noise of their own seed and position
(:mod:`jumpforward.decoding.sampling`), so that a draft model which agrees with the model draws the same tokens.

Speculative decoding with a draft model is of Leviathan et al. (2023) and Chen et al. (2023). They accept a draft by a
ratio of probabilities; here a draft is a guess at the model's own draw, as every other is.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch.nn.functional import pad

from jumpforward.decoding.allowance import Allowance
from jumpforward.decoding.costs import PassCosts
from jumpforward.decoding.drafter import Bid, Drafter, DraftRequest, DraftView, Outcome, Stake
from jumpforward.engine.prefixes import num_common
from jumpforward.engine.runner import Row, Runner
from jumpforward.errors import RollbackUnsupportedError, VocabularyMismatchError
from jumpforward.vocab.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    # A model with the tokenizer of the engine's; or a model and its tokenizer, which is then compared.
    ModelToDraft: TypeAlias = PreTrainedModel | tuple[PreTrainedModel, PreTrainedTokenizerBase]

_NUM_TIMED = 3  # passes that say what one costs before the first request
_START_PASSES = 16  # of the draft model, that it may take before it has saved any


class DraftModel(Drafter):
    """Drafts what a second model chooses under the same mask, one token a bid.

    It falls silent where its passes take longer than they save, which is measured.
    """

    name = "model"
    is_slow = True

    def __init__(self, model: ModelToDraft, vocabulary: Vocabulary, costs: PassCosts, *, is_shared: bool) -> None:
        """Take a model, and time a few passes of it.

        Args:
            model: the draft model; or a pair of it and its tokenizer.
            vocabulary: what the ids stand for in the engine's model.
            costs: what the draft model's passes cost.
            is_shared: whether one request may learn how often the model was right in another.

        Raises:
            ModelError: it is not a decoder that maps ids to logits.
            RollbackUnsupportedError: its cache cannot be cropped.
            VocabularyMismatchError: its ids stand for other text.
        """
        self.costs = costs
        self.runner = runner_for_drafts(model, vocabulary)
        cache = self.runner.new_cache()
        for _ in range(_NUM_TIMED):
            start_s = perf_counter()
            self.runner.forward(cache, [[0]], [[0]])
            costs.observe(1, perf_counter() - start_s)
        self._allowance = self._new_allowance() if is_shared else None

    def start(self, request: DraftRequest) -> Drafter:
        """Return the source of one request, which has a cache of its own."""
        return _Ahead(self, request, self._allowance or self._new_allowance())

    def _new_allowance(self) -> Allowance:
        return Allowance(_START_PASSES * self.costs.now.of(1))


class _Ahead(Drafter):
    name = DraftModel.name
    is_slow = True

    def __init__(self, shared: DraftModel, request: DraftRequest, allowance: Allowance) -> None:
        self._runner = shared.runner
        self._costs = shared.costs
        self._row = Row(self._runner.new_cache())
        self._allowance = allowance
        self._prompt_ids = list(request.prompt_ids)
        self._sampler = request.sampler
        self._width = request.vocabulary.width
        self._setting = self._sampler.seed is None
        self._token_s = 0.0  # what a token of the engine costs, as far as is known here
        self._cached: list[int] = []
        self._bids: dict[int, tuple[int | None, Stake]] = {}  # by the index in the output

    def propose(self, view: DraftView) -> Bid | None:
        ids = [*self._prompt_ids, *view.output_ids]
        # The last token is always fed, for what comes behind it.
        num_cached = len(self._cached)
        if self._cached != ids[:num_cached] or num_cached == len(ids):
            num_cached = num_common(self._cached, ids[:-1])
        # A prompt is fed once for many tokens; the allowance sees to it that it pays.
        num_rows = len(ids) - max(num_cached, len(self._prompt_ids) - 1)
        self._token_s = view.stake.token_s
        price_s = self._costs.now.of(num_rows)
        if len(ids) > self._runner.max_length or not self._allowance.permits(view.stake, price_s, self._setting):
            return None
        token, confidence = self._choose(ids, num_cached, view)
        spent_s = self._costs.now.of(len(ids) - num_cached)
        self._allowance.spend(spent_s)
        view.spent_s += spent_s
        self._bids[len(view.output_ids)] = token, view.stake
        return None if token is None else Bid((token,), confidence)

    def _choose(self, ids: list[int], num_cached: int, view: DraftView) -> tuple[int | None, float]:
        """Return the draft model's choice behind ``ids``, None where its logits permit none, and its probability."""
        start_s = perf_counter()
        self._row.crop(num_cached)
        chunk = ids[num_cached:]
        (logits,) = self._runner.forward(self._row.cache, [chunk], [[len(chunk) - 1]])
        self._cached = ids
        masked = pad(logits, (0, self._width - logits.shape[-1]), value=-torch.inf)  # (1, width): padding may differ
        bitmask = torch.from_numpy(view.mask)[None].to(masked.device)
        (token,) = self._sampler.choose(masked, bitmask, [len(view.output_ids)])
        confidence = 0.0 if token is None else float((masked[0, token] - masked[0].logsumexp(-1)).exp())
        self._costs.observe(len(chunk), perf_counter() - start_s)
        return token, confidence

    def learn(self, outcome: Outcome) -> None:
        self._allowance.grow(self._token_s * (len(outcome.output_ids) - outcome.num_before))
        for index, (token, stake) in self._bids.items():
            place = index - outcome.num_before
            # Behind a refused token the output is another than the draft model saw.
            if place <= outcome.num_accepted and index < len(outcome.output_ids):
                self._allowance.learn(
                    stake,
                    self._setting,
                    is_drafted=_holds(outcome.tokens, place, token),
                    is_right=outcome.output_ids[index] == token,
                )
        self._bids.clear()


def _holds(tokens: Sequence[int], place: int, token: int | None) -> bool:
    return place < len(tokens) and tokens[place] == token


def runner_for_drafts(model: ModelToDraft, vocabulary: Vocabulary) -> Runner:
    """Return what runs a draft model; raise what :class:`DraftModel` raises."""
    model, tokenizer = model if isinstance(model, tuple) else (model, None)
    runner = Runner(model)
    name = type(model).__name__
    if runner.no_rollback_reason is not None:
        raise RollbackUnsupportedError(
            f"a draft model must go back behind each refused token, and {name} cannot: {runner.no_rollback_reason}; "
            "use a model without a recurrent state, or leave draft_model out"
        )
    if tokenizer is None and runner.width != vocabulary.width:
        raise VocabularyMismatchError(
            f"expected a draft model with the model's tokenizer and its {vocabulary.width} logits, got {name} with "
            f"{runner.width}: use one of the same family; if only the padding differs, pass it with its tokenizer, as "
            "draft_model=(model, tokenizer)"
        )
    if tokenizer is not None:
        _check_tokens(tokenizer, vocabulary, runner.width)
    return runner


def _check_tokens(tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary, width: int) -> None:
    """Raise VocabularyMismatchError where a draft model's ids stand for other text, or are too few."""
    if width < vocabulary.num_tokens:
        raise VocabularyMismatchError(
            f"expected a draft model with logits for all {vocabulary.num_tokens} tokens of the vocabulary, got "
            f"{width}: use one of the model's family"
        )
    theirs = Vocabulary.from_tokenizer(tokenizer, width=vocabulary.width, end_ids=vocabulary.end_ids)
    for index, (own, other) in enumerate(zip(vocabulary.token_bytes, theirs.token_bytes, strict=True)):
        if own and own != other:
            raise VocabularyMismatchError(
                f"expected a draft model with the model's tokenizer, got one in which the id {index} stands for "
                f"{other!r} and not for {own!r}: use one of the model's family"
            )
