"""The laws over the texts of a finite language: by definition, and by walking through all runs of the engine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from continuations import Context, Tokens

import jumpforward as jf
from jumpforward.decoding.boundary import Boundary, Spelling
from jumpforward.decoding.costs import FixedCosts
from jumpforward.decoding.forced import ForcedText
from jumpforward.decoding.pace import Pace
from jumpforward.decoding.policy import policy_named
from jumpforward.engine.prompt import Prompt, encode_prompt
from jumpforward.engine.request import Request
from jumpforward.engine.run import Run
from jumpforward.engine.runner import Row
from jumpforward.grammar.bytewise import np_bits
from jumpforward.stats import Counters
from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.encoder import PlainEncoder
from jumpforward.vocab.vocabulary import Vocabulary

Law = Mapping[bytes, float]

FIRST_CUT = 1e-6  # of a path; lowered until what is lost is little enough

POLICIES = ("masked", "exact", "canonical", "retokenize", "xgrammar", "alone")


@dataclass(frozen=True)
class Language:
    """A finite language and what the model is asked with."""

    name: str
    grammar: jf.Grammar
    texts: Sequence[str]
    prompt: Prompt


class Alone(Boundary):
    """Has forced text written as the tokenizer encodes it by itself, all of it."""

    def __init__(self, kit: Kit, language: Language) -> None:
        super().__init__(kit.encoder, kit.borders)
        self._encoder = kit.encoder
        self._tokens = kit.engine.compiler.pushdown(language.grammar).tokens

    def spell(self, left: Sequence[int], forced: bytes, live_bytes: Callable[[bytes], bytes] | None = None) -> Spelling:  # noqa: ARG002
        """Return the tokens, all of them as stable ones."""
        ids = self._ids_of(left, forced)
        return Spelling(ids, len(ids))

    def _ids_of(self, left: Sequence[int], forced: bytes) -> Tokens:  # noqa: ARG002
        return self._encoder.encode(forced) or ()


class XGrammar(Alone):
    """Has the tokens written that xgrammar says to jump over."""

    def _ids_of(self, left: Sequence[int], forced: bytes) -> Tokens:  # noqa: ARG002
        import xgrammar

        matcher = xgrammar.GrammarMatcher(self._tokens)
        if not all(map(matcher.accept_token, left)):
            raise RuntimeError(f"xgrammar refuses tokens that the engine took: {list(left)}")
        return tuple(matcher.find_jump_forward_tokens())


class Kit:
    """An engine, and the parts of its boundary, of which other rules are made."""

    def __init__(self, engine: jf.Engine) -> None:
        self.engine = engine
        self.vocabulary: Vocabulary = engine.vocabulary
        self.encoder = PlainEncoder(engine.tokenizer, self.vocabulary)
        self.borders = StableBorders(engine.tokenizer, self.vocabulary)
        self.by_bytes: defaultdict[bytes, list[int]] = defaultdict(list)
        for token, data in enumerate(self.vocabulary.token_bytes):
            if data:
                self.by_bytes[data].append(token)

    def boundary(self, policy: str, language: Language) -> Boundary:
        """Return what spells forced text under a policy."""
        others = {"alone": Alone, "xgrammar": XGrammar}
        return others[policy](self, language) if policy in others else Boundary(self.encoder, self.borders)


class Says:
    """What the model says behind every token path into a language."""

    def __init__(self, kit: Kit, language: Language) -> None:
        self.kit = kit
        self.prompt_ids = encode_prompt(language.prompt, kit.engine.tokenizer, kit.engine._runner.max_length)
        self.texts = [text.encode() for text in language.texts]
        self._context = Context(kit.engine, self.prompt_ids)
        self._legal: dict[bytes, list[int]] = {}
        self._known: dict[Tokens, np.ndarray] = {}

    @property
    def num_rows(self) -> int:
        """How many paths the model is asked about at a time."""
        return self._context.num_rows

    @property
    def num_known(self) -> int:
        """How many paths the model was asked about."""
        return len(self._known)

    def legal(self, path: Tokens) -> list[int]:
        """Return the tokens behind which a path can still become a text, or that end it, ascending."""
        data = self.kit.vocabulary.text_bytes(path)
        if data not in self._legal:
            rests = {text[len(data) :] for text in self.texts if text.startswith(data)}
            pieces = {rest[:length] for rest in rests for length in range(1, len(rest) + 1)}
            tokens = [token for piece in pieces for token in self.kit.by_bytes.get(piece, ())]
            self._legal[data] = sorted([*tokens, *(self.kit.vocabulary.end_ids if b"" in rests else ())])
        return self._legal[data]

    def learn(self, paths: Sequence[Tokens]) -> None:
        """Ask the model about the paths among these that are new."""
        new = [path for path in dict.fromkeys(paths) if path not in self._known]
        for path, said in zip(new, self._context.logprobs(new), strict=True):
            self._known[path] = said[self.legal(path)].numpy()

    def __call__(self, path: Tokens) -> np.ndarray:
        """Return the log-probabilities of the legal tokens behind a path, shape (legal,)."""
        if path not in self._known:
            self.learn([path])
        return self._known[path]


@dataclass
class Laws:
    """The laws by definition, in probabilities that need not add up to 1: `lost` is what is missing."""

    masked: Counter[bytes] = field(default_factory=Counter)
    ideal: Counter[bytes] = field(default_factory=Counter)
    lost_masked: float = 0.0
    lost_ideal: float = 0.0  # a bound, in the units of `ideal`
    num_paths: int = 0

    @property
    def lost(self) -> float:
        """The larger of the two shares that may be missing."""
        return max(self.lost_masked, self.lost_ideal / sum(self.ideal.values()))


def canonical_weights(says: Says) -> dict[bytes, float]:
    """Return the probability, without a mask, of each text in its canonical tokens and with an end behind it."""
    paths = {text: says.kit.encoder.encode(text) or () for text in says.texts}
    says.learn([path[:cut] for path in paths.values() for cut in range(len(path) + 1)])
    weights = {}
    for text, path in paths.items():
        steps = [says(path[:cut])[says.legal(path[:cut]).index(token)] for cut, token in enumerate(path)]
        weights[text] = float(np.exp(sum(steps) + _end(says, path)))
    return weights


def _end(says: Says, path: Tokens) -> float:
    """Return the log-probability that a text ends behind a path."""
    ends = np.isin(says.legal(path), says.kit.vocabulary.end_ids)
    return float(np.logaddexp.reduce(says(path)[ends]))


def laws(says: Says, cut: float, least_weight: float) -> Laws:
    """Sum over all paths, of mass above ``cut`` for masked, and above that share of the weight for the ideal.

    Behind a path that is kept its likeliest token is kept in any case, as in :class:`Walk`.
    """
    made = Laws()
    waiting: list[tuple[Tokens, float, float]] = [((), 0.0, 0.0)]
    log_cut, log_weight_cut = np.log(cut), np.log(cut * least_weight)
    while waiting:
        batch = waiting[-says.num_rows :]
        del waiting[-len(batch) :]
        says.learn([path for path, _, _ in batch])
        for path, mass, weight in batch:
            said = says(path)
            best = int(said.argmax())
            children = zip(says.legal(path), weight + said, mass + _shares(said), strict=True)
            for index, (token, weighs, share) in enumerate(children):
                kept_share = share if share >= log_cut or index == best else -np.inf
                kept_weight = weighs if weighs >= log_weight_cut else -np.inf
                made.lost_masked += np.exp(share) * (kept_share != share)
                made.lost_ideal += np.exp(weighs) * (kept_weight != weighs)
                if token in says.kit.vocabulary.end_ids:
                    text = says.kit.vocabulary.text_bytes(path)
                    made.masked[text] += np.exp(kept_share)
                    made.ideal[text] += np.exp(kept_weight)
                    made.num_paths += 1
                elif max(kept_share, kept_weight) > -np.inf:
                    waiting.append(((*path, token), kept_share, kept_weight))
    return made


def _shares(said: np.ndarray) -> np.ndarray:
    """Return log-probabilities under the mask."""
    return said - np.logaddexp.reduce(said)


class Cells:
    """Stands in for the cache of a run whose forward passes are looked up."""

    def __init__(self) -> None:
        self.lengths: tuple[int, ...] = (0,)

    def crop(self, length: int, row: int = 0) -> None:  # noqa: ARG002
        """Forget what is behind the first ``length`` tokens."""
        self.lengths = (length,)


class Walk:
    """All runs of the engine under one policy, each with its probability: the runs' own draws are replaced."""

    def __init__(self, says: Says, language: Language, policy: str, cut: float) -> None:
        self._says, self._cut = says, cut
        kit = says.kit
        named = policy_named(policy if policy in POLICIES[:4] else "canonical")
        self._request = Request(says.prompt_ids, language.grammar, named, max_new_tokens=64)
        self._boundary = kit.boundary(policy, language)
        self._drafters = [ForcedText(self._boundary)] if named.drafts and policy in POLICIES[:4] else []
        self._compiled = kit.engine.compiler.compile(language.grammar)
        self.law: Counter[bytes] = Counter()
        self.lost = 0.0
        self.num_runs = 0
        self._waiting: list[Tokens] = [()]
        while self._waiting:
            self._run(self._waiting.pop())

    def _run(self, decisions: Tokens) -> None:
        """Make one run, which draws these tokens first and then the likeliest; note the other ways to go on."""
        runner = self._says.kit.engine._runner
        cells = Cells()
        run = Run(
            self._request,
            self._compiled,
            runner,
            self._boundary,
            self._drafters,
            Counters(),
            Row(cells),
            pace=Pace(FixedCosts(pass_s=1.0, row_s=0.0)),
            max_draft=64,
        )
        mass, drawn = 1.0, ()
        while num_tokens := run.prepare():
            piece = run.piece(num_tokens)
            run.complete_masks()
            cells.lengths = (cells.lengths[0] + num_tokens,)
            # A row behind a refused draft token gets None, which is an error where it is read.
            chosen: list[int | None] = [None] * len(piece.rows)
            for index, path in enumerate(_reached(run, piece.rows, chosen)):
                token, share = self._draw(run.masks_at(piece.rows)[index].numpy(), path, drawn, decisions, mass)
                chosen[index], mass, drawn = token, mass * share, (*drawn, token)
            run.take(piece, chosen, None, None)
        if run.sequence.finish_reason != "end":
            raise RuntimeError(f"expected a run to its end, got {run.text!r} ({run.sequence.finish_reason})")
        self.law[bytes(run.sequence.data)] += mass
        self.num_runs += 1

    def _draw(
        self, words: np.ndarray, path: Tokens, drawn: Tokens, decisions: Tokens, mass: float
    ) -> tuple[int, float]:
        """Return a token and its probability under the mask."""
        legal = np.flatnonzero(np_bits(words)).tolist()
        if legal != self._says.legal(path):
            raise RuntimeError(f"behind {path} the engine permits {legal}, and the language {self._says.legal(path)}")
        shares = np.exp(_shares(self._says(path)))
        if len(drawn) < len(decisions):
            at = legal.index(decisions[len(drawn)])
            return legal[at], float(shares[at])
        best = int(shares.argmax())
        for at, share in enumerate(shares):
            if at != best and mass * share >= self._cut:
                self._waiting.append((*drawn, legal[at]))
            elif at != best:
                self.lost += float(mass * share)
        return legal[best], float(shares[best])


def _reached(run: Run, rows: Sequence[int], chosen: Sequence[int | None]) -> Iterator[Tokens]:
    """Give the path in front of each row, until one is not what was chosen at the row before it."""
    before: list[int] = []
    for index, path in enumerate(run.outputs_at(rows)):
        if path[: len(before)] != before:
            return
        yield tuple(path)
        before = [*path, chosen[index]]
