"""Every experiment runs in its quick form, on a tiny model with SmolLM2's tokenizer, and ends with one JSON object."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import documents
import pytest
from helpers import tiny_model
from transformers import AutoTokenizer

from jumpforward.engine.pretrained import default_model

FOLDER = Path(__file__).parent.parent / "experiments"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if "\nif __name__" in path.read_text())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    name, local = default_model()
    tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=local)
    tokenizer.save_pretrained(folder)
    tiny_model("llama", len(tokenizer), max_position_embeddings=4096).save_pretrained(folder)
    return folder


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of documents as JSONSchemaBench's, whatever else is on this machine."""
    rows = [json.dumps(row) for row in documents.own_rows()]
    (tmp_path / "own.jsonl").write_text("\n".join(rows), encoding="utf-8")
    monkeypatch.setattr(documents, "FOLDER", tmp_path)
    return tmp_path


@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_runs(
    name: str, tiny: Path, corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = corpus / "pictures"
    script = FOLDER / f"{name}.py"
    arguments = ["--quick", "--model", str(tiny), "--pictures", str(pictures)]
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    monkeypatch.syspath_prepend(FOLDER)
    runpy.run_path(str(script), run_name="__main__")
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["experiment"] == name
    assert record["conditions"]["quick"]
    assert {"torch", "xgrammar"} <= record["conditions"]["versions"].keys()
    assert all(path.read_text().startswith("<?xml") for path in pictures.glob("*"))
    assert (pictures / f"{name}.svg").exists() or "import plot" not in script.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_is_described(name: str) -> None:
    assert f"## {name}.py: " in (FOLDER / "README.md").read_text(encoding="utf-8")
