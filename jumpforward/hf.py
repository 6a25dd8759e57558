"""Jumping forward inside ``model.generate``: a decoding loop for transformers' hook ``custom_generate``.

    from functools import partial

    model.generate(
        **inputs,
        custom_generate=partial(jf.hf.generate, tokenizer=tokenizer),
        grammar=jf.json_schema(schema),
        max_new_tokens=200,
    )

transformers has prepared the inputs, the generation config, the processors and the criteria by the time it calls the
loop. transformers 5.24 does not pass a call's own ``tokenizer`` and ``streamer`` on to a callable: bind them, as above.
Without a ``tokenizer`` the one that lies beside the model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PrefixConstrainedLogitsProcessor,
    StoppingCriteriaList,
)
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GenerateDecoderOnlyOutput

from jumpforward.decoding.policy import Policy, policy_named
from jumpforward.decoding.sampling import SamplingOptions
from jumpforward.engine.request import Request
from jumpforward.errors import GenerateOptionError, OptionError, PromptError
from jumpforward.grammar.spec import Grammar
from jumpforward.hf_engines import end_ids, engine_for
from jumpforward.hf_rows import GeneratedRow, RowProcessor

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.generation.streamers import BaseStreamer

_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
# What is not supported beside a grammar, with the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1),
    "epsilon_cutoff": (None, 0),
    "eta_cutoff": (None, 0),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "guidance_scale": (None, 1),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "renormalize_logits": (None, False),
    "top_h": (None,),
    "typical_p": (None, 1),
    "watermarking_config": (None,),
}
# What a model's forward may be given besides ids. Everything else says something about the sequence.
_UNDERSTOOD = {"attention_mask", "position_ids", "logits_to_keep", "cache", "past_key_values", "use_cache"}


def generate(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    synced_gpus: bool = False,
    streamer: BaseStreamer | None = None,
    *,
    grammar: Grammar | Sequence[Grammar] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    policy: str = "exact",
    **model_kwargs: Any,
) -> GenerateDecoderOnlyOutput | torch.LongTensor:
    """Generate what a grammar permits; transformers' ``generate`` calls this.

    Processors see each row by itself, as a batch of equal rows, and must be functions of ids and logits alone: they are
    asked about drafts too. They run before the mask; the warpers of the generation config run behind it. Criteria see
    every prefix of a row's output, one row at a time. Draws are repeatable behind ``torch.manual_seed``.

    Args:
        model: the model.
        input_ids: prompts, int64, shape (rows, length), padded on the left.
        logits_processor: what transformers has prepared, the caller's own among them.
        stopping_criteria: the same.
        generation_config: the same.
        synced_gpus: not supported beside a grammar.
        streamer: gets the prompt, then tokens as soon as they are final; of one row only.
        grammar: for all rows, or one for each prompt. Without one, this is transformers' own loop.
        tokenizer: the model's tokenizer.
        policy: see :class:`jumpforward.engine.request.GenerationOptions`.
        model_kwargs: ``attention_mask`` says where the padding is.

    Returns:
        prompts and outputs, int64, shape (rows, length + longest output), or with ``return_dict_in_generate`` an
        object that has them. Its ``scores`` and ``logits`` are NaN behind the end of a row.

    Raises:
        GenerateOptionError: an argument or a field of the generation config that is not supported here.
        OptionError, PromptError, GrammarError, GenerationError: as :meth:`jumpforward.Engine.generate` raises them.
    """
    if generation_config.get_generation_mode() not in _MODES:
        raise GenerateOptionError("the generation config", str(generation_config.get_generation_mode().value))
    num_rows = len(input_ids)
    if streamer is not None and num_rows != 1:
        raise GenerateOptionError("streamer", f"{num_rows} rows")
    if grammar is None:
        if streamer is not None:
            streamer.put(input_ids.cpu())
        sample: Any = model._sample
        output: GenerateDecoderOnlyOutput | torch.LongTensor = sample(
            input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus, streamer, **model_kwargs
        )
        return output
    _check_supported(generation_config, logits_processor, synced_gpus)
    processors, requests = _requests(
        input_ids, model_kwargs, logits_processor, generation_config, _per_row(grammar, num_rows), policy_named(policy)
    )
    loop, tasks = engine_for(model, tokenizer, generation_config).start(requests)
    if streamer is not None:
        streamer.put(input_ids.cpu())
    rows = [GeneratedRow(task, ids, stopping_criteria, streamer) for task, ids in zip(tasks, input_ids, strict=True)]
    while not loop.is_idle:
        loop.wait()
        loop.step()
        for row in rows:
            row.look()
    outputs = [row.output_ids() for row in rows]
    if streamer is not None:
        streamer.end()
    sequences: torch.LongTensor = _joined(input_ids, outputs, generation_config)
    if not generation_config.return_dict_in_generate:
        return sequences
    keeping = processors if _wants_scores(generation_config) else []
    kept = [each.kept(len(output)) for each, output in zip(keeping, outputs, strict=False) if each is not None]
    return _with_scores(sequences, rows, outputs, kept, generation_config)


def _with_scores(
    sequences: torch.LongTensor,
    rows: Sequence[GeneratedRow],
    outputs: Sequence[Sequence[int]],
    kept: Sequence[tuple[torch.Tensor, torch.Tensor]],
    config: GenerationConfig,
) -> GenerateDecoderOnlyOutput:
    """Return what ``return_dict_in_generate`` asks for; ``kept`` is logits and processed logits of each row."""
    found: Any = GenerateDecoderOnlyOutput(sequences=sequences)
    if config.output_logits:
        found.logits = _steps([raw for raw, _ in kept])
    if config.output_scores:
        scored = zip(rows, kept, outputs, strict=True)
        found.scores = _steps([row.scores(logits, output) for row, (_, logits), output in scored])
    result: GenerateDecoderOnlyOutput = found
    return result


def _requests(
    input_ids: torch.LongTensor,
    model_kwargs: Mapping[str, Any],
    logits_processor: LogitsProcessorList,
    config: GenerationConfig,
    grammars: Sequence[Grammar],
    plan: Policy,
) -> tuple[list[RowProcessor | None], list[Request]]:
    """Return the rows as requests, and the processor that each has."""
    keeps = _wants_scores(config)
    if keeps:
        plan = _asking_everywhere(plan)
    own, sampling = _split(logits_processor, config)
    num_rows, len_inputs = input_ids.shape
    processors = [
        RowProcessor(input_ids, index, own, keeps=keeps) if own or keeps else None for index in range(num_rows)
    ]
    requests = [
        Request(
            prompt,
            grammar,
            plan,
            replace(sampling, seed=_drawn_seed()) if config.do_sample else sampling,
            config.max_length - len_inputs,
            min_new_tokens=max(config.min_new_tokens or 0, (config.min_length or 0) - len_inputs, 0),
            processor=processor,
        )
        for prompt, grammar, processor in zip(_prompts(input_ids, model_kwargs), grammars, processors, strict=True)
    ]
    return processors, requests


def _check_supported(config: GenerationConfig, processors: LogitsProcessorList, synced_gpus: bool) -> None:
    for name, neutral in _NEUTRAL.items():
        value = getattr(config, name, None)
        if value not in neutral:
            raise GenerateOptionError(name, repr(value))
    if any(isinstance(processor, PrefixConstrainedLogitsProcessor) for processor in processors):
        raise GenerateOptionError("prefix_allowed_tokens_fn", "a function")
    if synced_gpus:
        raise GenerateOptionError("synced_gpus", "True")


def _prompts(input_ids: torch.LongTensor, model_kwargs: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return the rows' ids without padding."""
    for name, value in model_kwargs.items():
        if name not in _UNDERSTOOD and value is not None:
            raise GenerateOptionError(name, f"a {type(value).__name__}")
    cache = model_kwargs.get("cache", model_kwargs.get("past_key_values"))
    if getattr(cache, "_is_user_defined", False):
        raise GenerateOptionError("cache", f"the caller's own {type(cache).__name__}")
    mask = model_kwargs.get("attention_mask")
    used = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.bool()
    positions = model_kwargs.get("position_ids")
    if positions is not None and not torch.equal(positions[used], (used.cumsum(-1) - 1)[used]):
        raise GenerateOptionError("position_ids", "others than 0, 1, 2 and so on behind the padding")
    prompts = [tuple(ids[kept].tolist()) for ids, kept in zip(input_ids, used, strict=True)]
    if not all(prompts):
        raise PromptError("a prompt is empty: expected an id to continue from that the attention mask does not hide")
    return prompts


def _per_row(grammar: Grammar | Sequence[Grammar], num_rows: int) -> list[Grammar]:
    """Return a grammar for each row; rows of one prompt, from ``num_return_sequences``, follow one another."""
    grammars = [grammar] if isinstance(grammar, Grammar) else list(grammar)
    if not grammars or num_rows % len(grammars):
        raise OptionError("grammar", grammar, f"one grammar, or one for each prompt ({num_rows} rows)")
    return [each for each in grammars for _ in range(num_rows // len(grammars))]


def _wants_scores(config: GenerationConfig) -> bool:
    return bool(config.return_dict_in_generate and (config.output_scores or config.output_logits))


def _asking_everywhere(plan: Policy) -> Policy:
    """Return a policy that makes the same tokens and asks the model about each of them."""
    if plan.forces:
        raise GenerateOptionError("output_scores", f"policy {plan.name!r}, which does not ask the model everywhere")
    return replace(plan, skips_certain=False)


def _split(processors: LogitsProcessorList, config: GenerationConfig) -> tuple[LogitsProcessorList, SamplingOptions]:
    """Return what runs before the mask, and the options of what runs behind it: the warpers, which come last."""
    if not config.do_sample:
        return processors, SamplingOptions()
    options = SamplingOptions(
        temperature=1.0 if config.temperature is None else config.temperature,
        top_k=config.top_k or None,
        top_p=config.top_p,
        min_p=config.min_p,
    )
    warpers = options.warpers()
    num_own = len(processors) - len(warpers)
    if [type(warper) for warper in warpers] != [type(processor) for processor in processors[num_own:]]:
        raise GenerateOptionError("the generation config", "warpers besides temperature, top_k, top_p and min_p")
    return LogitsProcessorList(processors[:num_own]), options


def _drawn_seed() -> int:
    """Return a seed from torch's own generator."""
    return int(torch.randint(2**63 - 1, ()))


def _joined(input_ids: torch.LongTensor, outputs: Sequence[Sequence[int]], config: GenerationConfig) -> Any:
    """Return prompts and outputs as one tensor, shorter outputs padded."""
    padding = config.pad_token_id
    if padding is None:
        padding = end_ids(config)[0] if end_ids(config) else 0
    longest = max(map(len, outputs))
    padded = [[*output, *[padding] * (longest - len(output))] for output in outputs]
    return torch.cat([input_ids, torch.tensor(padded, dtype=input_ids.dtype, device=input_ids.device)], dim=1)


def _steps(rows: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return one tensor a position, shape (rows, width), from one a row, shape (its length, width)."""
    return tuple(torch.nn.utils.rnn.pad_sequence(list(rows), padding_value=torch.nan).unbind(0))
