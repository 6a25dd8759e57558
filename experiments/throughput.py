"""Does jumping forward still pay when many requests share a model?

    python experiments/throughput.py [--quick] [--repeats 1] [--batch-sizes 1 2 4 8 16] [--dtype float32]

32 requests of the three families of end_to_end.py, greedy, at most 80 tokens each.

throughput  all 32 by `masked`, `exact` and `canonical`, and by transformers' own batched `generate` with xgrammar's
            processor (left-padded, a batch at a time), at every batch size. transformers' continuous batching takes no
            grammar, so that it writes other texts: only its tokens/s can be compared.
families    the same at one batch size, each family by itself.

Methods are interleaved, in an order that turns from round to round; ratios are medians over rounds. No request
remembers another's output, and no prefix is kept. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any
from unittest import mock

import torch
from harness import COLOURS, ERR, conditions, finish, parser, plot, show, workload
from rich.progress import track
from transformers import ContinuousBatchingConfig, GenerationConfig
from xgrammar.contrib.hf import LogitsProcessor

import jumpforward as jf
from jumpforward.engine import passes
from jumpforward.engine.prompt import encode_prompt
from jumpforward.engine.scheduler import Scheduler

GENERATE, CONTINUOUS = "model.generate", "continuous batching"
POLICIES = ("masked", "exact", "canonical")
FAMILY_BATCH_SIZE = 8


@dataclass(frozen=True)
class Case:
    """One request, its grammar shared by all methods."""

    family: str
    prompt: list[dict[str, str]]
    grammar: jf.Grammar


@dataclass
class Outcome:
    """One method over one list of requests."""

    seconds: float
    outputs: list[list[int]]
    split: dict[str, float] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.outputs))


def main() -> None:
    options = _options()
    engine = jf.Engine.from_pretrained(options.model, dtype=options.dtype, prefix_cache_bytes=0, memory="request")
    cases = mixed_cases(options.num_requests)
    for case in cases:  # once, and for no method's account
        engine.compiler.compile(case.grammar)
        engine.compiler.pushdown(case.grammar)
    throughput = {size: _rounds(engine, cases, size, options) for size in options.batch_sizes}
    _show("throughput", {f"batch {size}": methods for size, methods in throughput.items()})
    families = {}
    for family in dict.fromkeys(case.family for case in cases):
        members = [case for case in cases if case.family == family]
        families[family] = _rounds(engine, members, FAMILY_BATCH_SIZE, options)
    _show(f"families, batch {FAMILY_BATCH_SIZE}", families)
    continuous = _continuous(engine, cases, options)
    ERR.print(CONTINUOUS, continuous)
    _plot(options, throughput)
    results = {"throughput": throughput, "families": families, "continuous_batching": continuous}
    finish("throughput", conditions(options), **results)


def _options() -> argparse.Namespace:
    made = parser(__doc__, draws=False)
    made.add_argument("--repeats", type=int, default=1)
    made.add_argument("--dtype", default="float32")
    made.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    options = made.parse_args()
    options.num_requests, options.max_new_tokens = 32, 80
    if options.quick:
        options.repeats, options.batch_sizes = 1, [4]
        options.num_requests, options.max_new_tokens = 4, 16
    return options


def mixed_cases(num_requests: int) -> list[Case]:
    """Return requests of all families in turn; behind the workload's 16 the same in other words."""
    by_family = defaultdict(list)
    for row in workload("end_to_end"):
        by_family[row["family"]].append(row)
    longest = max(map(len, by_family.values()))
    mixed = [members[index] for index in range(longest) for members in by_family.values() if index < len(members)]
    cases = []
    for beginning in ("", "Please do this: "):
        for row in mixed:
            prompt = [{"role": "user", "content": beginning + row["prompt"]}]
            cases.append(Case(row["family"], prompt, jf.json_schema(row["schema"])))
    return cases[:num_requests]


def _rounds(
    engine: jf.Engine, cases: Sequence[Case], batch_size: int, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    methods = (GENERATE, *POLICIES)
    outcomes: dict[str, list[Outcome]] = {method: [] for method in methods}
    for turn in track(range(options.repeats), f"batch {batch_size}, {len(cases)} requests", console=ERR):
        shift = (turn + batch_size) % len(methods)
        for method in [*methods[shift:], *methods[:shift]]:
            outcomes[method].append(_run(engine, method, cases, batch_size, options.max_new_tokens))
    return {method: _summary(method, outcomes, len(cases)) for method in methods}


def _run(engine: jf.Engine, method: str, cases: Sequence[Case], batch_size: int, max_new_tokens: int) -> Outcome:
    if method == GENERATE:
        return _generate(engine, cases, batch_size, max_new_tokens)
    requests: list[Any] = [
        {"prompt": case.prompt, "grammar": case.grammar, "policy": method, "max_new_tokens": max_new_tokens}
        for case in cases
    ]
    with _split(engine.model) as split:
        start = perf_counter()
        results: list[Any] = engine.generate_batch(requests, batch_size=batch_size)
        seconds = perf_counter() - start
    accounts = [result.stats for result in results]
    num_fed = sum(length * count for each in accounts for length, count in each.chunk_lengths.items())
    padding = 1 - num_fed / split.pop("num_slots")
    split["padding_s"] = padding * split["model_s"]
    split["model_s"] -= split["padding_s"]
    split["mask_s"] = sum(each.mask_s for each in accounts)
    split["boundary_s"] = sum(each.boundary_s for each in accounts)
    split["rest_s"] = seconds - sum(value for name, value in split.items() if name.endswith("_s"))
    return Outcome(seconds, [result.token_ids for result in results], split)


@contextmanager
def _split(model: Any) -> Iterator[dict[str, float]]:
    """Add up, until the end of the block, what belongs to no single request: seconds, passes, and slots in passes."""
    found: dict[str, float] = defaultdict(float)

    def timed(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any, **options: Any) -> Any:
            start = perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                found[what] += perf_counter() - start

        return measured

    def note(_: Any, __: Any, arguments: dict[str, Any]) -> None:
        found["num_passes"] += 1
        found["num_slots"] += arguments["input_ids"].numel()

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    with ExitStack() as stack:
        stack.callback(handle.remove)
        stack.enter_context(mock.patch.object(model, "forward", timed("model_s", model.forward)))
        stack.enter_context(mock.patch.object(passes, "choose_tokens", timed("choice_s", passes.choose_tokens)))
        plan = timed("scheduling_s", Scheduler.plan)
        stack.enter_context(mock.patch.object(Scheduler, "plan", lambda *each: plan(*each)))
        yield found


def _generate(engine: jf.Engine, cases: Sequence[Case], batch_size: int, max_new_tokens: int) -> Outcome:
    """Run transformers' own loop, a left-padded batch at a time."""
    ends = list(engine.vocabulary.end_ids)
    outputs: list[list[int]] = []
    start = perf_counter()
    for first in range(0, len(cases), batch_size):
        part = cases[first : first + batch_size]
        prompts = [encode_prompt(case.prompt, engine.tokenizer, 2**31) for case in part]
        longest = max(map(len, prompts))
        ids = torch.tensor([[ends[0]] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        compiled = [engine.compiler.pushdown(case.grammar).tokens for case in part]
        found = engine.model.generate(  # type: ignore[operator]
            ids.to(engine.model.device),
            attention_mask=mask.to(engine.model.device),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=ends,
            pad_token_id=ends[0],
            logits_processor=[LogitsProcessor(compiled)],
        )
        outputs += [_cut(row, ends) for row in found[:, longest:].tolist()]
    return Outcome(perf_counter() - start, outputs)


def _cut(output: list[int], ends: Sequence[int]) -> list[int]:
    """Return an output without the padding behind its end."""
    length = next((index + 1 for index, token in enumerate(output) if token in ends), len(output))
    return output[:length]


def _summary(method: str, outcomes: dict[str, list[Outcome]], num_requests: int) -> dict[str, Any]:
    own = outcomes[method]
    seconds = median(outcome.seconds for outcome in own)

    def speedup(base: str) -> float:
        return median(other.seconds / outcome.seconds for other, outcome in zip(outcomes[base], own, strict=True))

    equal = zip(own[0].outputs, outcomes["masked"][0].outputs, strict=True)
    return {
        "seconds": seconds,
        "tokens_per_s": own[0].num_tokens / seconds,
        "requests_per_s": num_requests / seconds,
        "speedup_over_generate": speedup(GENERATE),
        "speedup_over_masked": speedup("masked"),
        "num_requests": num_requests,
        "num_output_tokens": own[0].num_tokens,
        "num_tokens_equal_masked": sum(mine == masked for mine, masked in equal),
        "split": {name: median(outcome.split[name] for outcome in own) for name in own[0].split},
    }


def _show(title: str, groups: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Print speeds, and then where the engine's time went, as shares of each method's seconds."""
    rows = [(group, method, row) for group, methods in groups.items() for method, row in methods.items()]
    speeds = [
        (
            *(group, method, row["tokens_per_s"], row["requests_per_s"]),
            *(row["speedup_over_generate"], row["speedup_over_masked"]),
            f"{row['num_tokens_equal_masked']} of {row['num_requests']}",
        )
        for group, method, row in rows
    ]
    show(title, ("", "method", "tokens/s", "requests/s", "× generate", "× masked", "tokens = masked"), speeds)
    parts = ("model", "padding", "mask", "boundary", "choice", "scheduling", "rest")
    shares = [
        (
            *(group, method, f"{row['split']['num_passes']:.0f}"),
            *(f"{100 * row['split'][f'{part}_s'] / row['seconds']:.1f} %" for part in parts),
        )
        for group, method, row in rows
        if row["split"]
    ]
    show(f"{title}: shares of the time", ("", "method", "passes", *parts), shares)


def _plot(options: argparse.Namespace, throughput: dict[int, dict[str, dict[str, Any]]]) -> None:
    with plot(options, "throughput") as axes:
        for index, method in enumerate((GENERATE, *POLICIES)):
            speeds = [methods[method]["tokens_per_s"] for methods in throughput.values()]
            axes.plot(range(len(speeds)), speeds, marker="osD^"[index], label=method, color=COLOURS[index])
        axes.set_xticks(range(len(throughput)), [str(size) for size in throughput])
        axes.set_xlabel("batch size")
        axes.set_ylabel("tokens/s")
        axes.set_ylim(bottom=0)
        axes.legend()


def _continuous(engine: jf.Engine, cases: Sequence[Case], options: argparse.Namespace) -> dict[str, Any]:
    """Run transformers' continuous batching without a grammar, on a copy of the model: it changes its attention."""
    prompts = [list(encode_prompt(case.prompt, engine.tokenizer, 2**31)) for case in cases]
    ends = list(engine.vocabulary.end_ids)
    # Room for all requests: 32 tokens a block by default, and as many tokens a step as the engine feeds.
    sizes = ContinuousBatchingConfig(num_blocks=16 * len(cases), max_batch_tokens=512)
    config = GenerationConfig(
        max_new_tokens=options.max_new_tokens, do_sample=False, eos_token_id=ends, pad_token_id=ends[0]
    )
    model: Any = copy.deepcopy(engine.model)
    start = perf_counter()
    try:
        found = model.generate_batch(prompts, generation_config=config, continuous_batching_config=sizes, warmup=False)
    except (RuntimeError, ValueError, NotImplementedError) as error:  # where it does not run on this machine
        return {"error": f"{type(error).__name__}: {error}"}
    seconds = perf_counter() - start
    num_tokens = sum(len(output.generated_tokens) for output in found.values())
    return {"seconds": seconds, "num_output_tokens": num_tokens, "tokens_per_s": num_tokens / seconds}


if __name__ == "__main__":
    main()
