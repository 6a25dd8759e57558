"""The engines of a model that ``model.generate`` calls: kept on the model itself, and so gone when it is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jumpforward.engine.engine import Engine
from jumpforward.engine.pretrained import load_tokenizer
from jumpforward.errors import OptionError

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

_NUM_KEPT_ENGINES = 4


def end_ids(config: GenerationConfig) -> list[int]:
    """Return every id that ends an output by a generation config."""
    ends = config.eos_token_id
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


class _Kept(dict[Any, Any]):
    """What is kept on a model, and goes when it goes. A copy of the model begins with nothing."""

    def __deepcopy__(self, _: Any) -> _Kept:
        return _Kept()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Kept, ()


def engine_for(model: Any, tokenizer: PreTrainedTokenizerBase | None, config: GenerationConfig) -> Engine:
    """Return the engine of a model and a tokenizer; the one of the last call where nothing has changed."""
    kept = vars(model).setdefault("_jumpforward", _Kept())
    if tokenizer is None:
        tokenizer = kept.get("tokenizer")
    if tokenizer is None:
        tokenizer = kept["tokenizer"] = _own_tokenizer(model)
    engines: dict[Any, Engine] = kept.setdefault("engines", {})
    ends = tuple(end_ids(config)) or None
    key = tokenizer, len(tokenizer), ends, model.dtype, model.device, model.config._attn_implementation
    if key not in engines:
        if len(engines) == _NUM_KEPT_ENGINES:
            engines.pop(next(iter(engines))).close()
        engines[key] = Engine(model, tokenizer, end_ids=ends)
    return engines[key]


def _own_tokenizer(model: PreTrainedModel) -> PreTrainedTokenizerBase:
    if not model.name_or_path:
        expected = "the model's, bound by custom_generate=functools.partial(jf.hf.generate, tokenizer=tokenizer)"
        raise OptionError("tokenizer", None, expected)
    return load_tokenizer(model.name_or_path)
