"""The command line: what goes where, exit codes, and one line for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import scripted_engine, tiny_engine

import jumpforward as jf
from jumpforward import cli, demo

SCHEMA = {"type": "object", "properties": {"ab": {"type": "boolean"}}, "required": ["ab"]}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> jf.Engine:
    engine = scripted_engine(['{"', '":', ' "', "ab", "true", ": "])
    engine.tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}>"
    monkeypatch.setattr(cli, "_engine", lambda *_: engine)
    return engine


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return str(path)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["jumpforward", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code or 0


@pytest.mark.usefixtures("engine")
def test_text_on_stdout_and_the_account_on_stderr(monkeypatch, capsys, schema: str) -> None:
    assert run(monkeypatch, "generate", "--schema", schema, "--prompt", "x") == 0
    output = capsys.readouterr()
    assert set(json.loads(output.out)) == {"ab"}
    assert "forward passes" in output.err


@pytest.mark.usefixtures("engine")
def test_a_record_has_everything(monkeypatch, capsys, schema: str) -> None:
    words = ("--output", "json", "--temperature", "1", "--seed", "4", "--policy", "canonical")
    assert run(monkeypatch, "generate", "--schema", schema, "--prompt", "x", *words) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["seed"] == 4
    assert record["stats"]["policy"] == "canonical"
    assert set(record) >= {"text", "token_ids", "provenance", "parsed", "finish_reason", "complete", "logprobs"}


@pytest.mark.usefixtures("engine")
def test_tokens_are_shown_by_provenance(monkeypatch, capsys, schema: str) -> None:
    assert run(monkeypatch, "generate", "--schema", schema, "--prompt", "x", "--output", "tokens") == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert {line.split()[0] for line in lines} <= {"sampled", "forced", "drafted"}


@pytest.mark.usefixtures("engine")
def test_a_prompt_is_healed_on_request(monkeypatch, capsys) -> None:
    words = ("generate", "--regex", "b+c", "--raw", "--prompt", "xa", "--output", "json")
    assert run(monkeypatch, *words) == 0
    assert json.loads(capsys.readouterr().out)["healed"] == ""
    assert run(monkeypatch, *words, "--heal") == 0
    assert json.loads(capsys.readouterr().out)["healed"] == "a"


@pytest.mark.usefixtures("engine")
def test_a_cut_off_output_exits_with_3(monkeypatch, capsys, schema: str) -> None:
    assert run(monkeypatch, "generate", "--schema", schema, "--prompt", "x", "--max-new-tokens", "2") == 3
    assert "incomplete" in capsys.readouterr().err


def test_prompt_is_a_user_message_unless_raw(monkeypatch, engine: jf.Engine) -> None:
    for words, text in (
        (("--prompt", "x"), "<user>x>"),
        (("--prompt", "x", "--system", "y"), "<system>y<user>x>"),
        (("--prompt", "x", "--raw"), "x"),
    ):
        engine.model.calls.clear()
        assert run(monkeypatch, "generate", "--choice", "a", "--choice", "b", *words) == 0
        fed = engine.model.calls[0][0]
        assert engine.tokenizer.decode(fed).startswith(text)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "--bogus"], "No such option"),
        (["generate", "--regex", "a"], "Missing option '--prompt'"),
        (["nonsense"], "No such command"),
        (["generate", "--prompt", "x"], "exactly one of"),
        (["generate", "--prompt", "x", "--regex", "a", "--choice", "b"], "exactly one of"),
        (["generate", "--prompt", "x", "--regex", "("], "parenthesis"),
        (["generate", "--prompt", "x", "--schema", "missing.json"], "No such file"),
        (["generate", "--prompt", "x", "--ebnf", "."], "that can be read"),
        (["generate", "--prompt", "", "--regex", "a"], "prompt is empty"),
        (["generate", "--prompt", "\udcff", "--regex", "a"], "UTF-8"),  # what the shell gave was not
        (["generate", "--prompt", "x", "--regex", "\udcff"], "surrogates"),
        (["generate", "--prompt", "x", "--regex", "a", "--stop", "\udcff"], "UTF-8"),
        (["generate", "--prompt", "x", "--regex", "a", "--temperature", "1e-45"], "temperature"),
        (["generate", "--prompt", "x", "--regex", "a", "--raw", "--system", "s"], "--system"),
        (["generate", "--prompt", "x", "--regex", "a", "--max-new-tokens", "0"], "at least 1"),
        (["generate", "--prompt", "x", "--regex", "a", "--max-new-tokens", "many"], "--max-new-tokens"),
        (["generate", "--prompt", "x", "--regex", "a", "--policy", "fast"], "--policy"),
        (["generate", "--prompt", "x", "--regex", "a", "--whitespace", "some"], "--whitespace"),
        (["generate", "--prompt", "x", "--regex", "a", "--top-p", "0.5"], "temperature above 0"),
        (["bench", "--prompt", "x", "--regex", "a", "--repeats", "0"], "--repeats"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(monkeypatch, capsys, words: list[str], message: str) -> None:
    assert run(monkeypatch, *words) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.strip().splitlines()) == 1
    assert message in output.err


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("content", "message"), [("{", "not JSON"), ("[]", "JSON object"), ('{"type": "foo"}', "Unsupported type")]
)
def test_a_bad_schema_file(monkeypatch, capsys, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    assert run(monkeypatch, "generate", "--prompt", "x", "--schema", str(path)) == 1
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("option", "grammar"), [("--ebnf", 'root ::= "ab" | "a"'), ("--lark", 'start: "ab" | "a"')])
def test_grammar_files(monkeypatch, capsys, tmp_path: Path, option: str, grammar: str) -> None:
    path = tmp_path / "grammar"
    path.write_text(grammar)
    assert run(monkeypatch, "generate", "--prompt", "x", option, str(path)) == 0
    assert capsys.readouterr().out.strip() in ("a", "ab")


def test_unknown_models_and_types_are_mistakes(monkeypatch, capsys) -> None:
    monkeypatch.setattr("jumpforward.engine.pretrained.hub_is_reachable", lambda: False)
    for words, message in ((("--model", "no/such"), "hub"), (("--dtype", "int8"), "floating-point")):
        assert run(monkeypatch, "generate", "--prompt", "x", "--regex", "a", *words) == 1
        assert message in capsys.readouterr().err


def test_version_and_help_need_no_model() -> None:
    for words, expected in ((["--version"], f"jumpforward {jf.__version__}"), (["--help"], "generate")):
        command = [sys.executable, "-c", "from jumpforward.cli import main; main()", *words]
        finished = subprocess.run(command, capture_output=True, text=True, check=True)
        assert expected in finished.stdout


def test_the_demonstration_says_whether_exact_equals_masked(monkeypatch, capsys, engine: jf.Engine) -> None:
    monkeypatch.setattr(demo, "SCHEMA", SCHEMA)
    assert run(monkeypatch, "demo") == 0
    output = capsys.readouterr().out
    assert "the same tokens as masked" in output
    assert "canonical" in output
    assert engine.model.calls


def test_bench_prints_one_record(monkeypatch, capsys, schema: str) -> None:
    monkeypatch.setattr(cli, "_engine", lambda *_: tiny_engine("llama", ['{"', '":', "ab", "true"]))
    assert run(monkeypatch, "bench", "--schema", schema, "--prompt", "x", "--raw", "--repeats", "2") == 0
    output = capsys.readouterr()
    record = json.loads(output.out)
    methods = {row["method"]: row for row in record["methods"]}
    assert list(methods) == ["model.generate", "masked", "exact", "canonical", "retokenize"]
    assert methods["exact"]["sources"]["forced"]["num_accepted"] > 0
    assert methods["masked"]["sources"] == {}
    assert (record["repeats"], record["dtype"]) == (2, "torch.float32")
    assert methods["model.generate"]["tokens_equal_masked"]
    assert methods["exact"]["tokens_equal_masked"]
    assert methods["exact"]["text"] == methods["model.generate"]["text"]
    assert methods["model.generate"]["num_forward_passes"] == methods["masked"]["num_forward_passes"]
    assert methods["exact"]["num_forward_passes"] < methods["masked"]["num_forward_passes"]
    assert all(row["median_s"] > 0 for row in methods.values())
    assert "canonical" in output.err


def test_an_interruption_has_an_exit_code_of_its_own(monkeypatch, capsys) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_engine", interrupted)
    assert run(monkeypatch, "generate", "--prompt", "x", "--regex", "a") == 130
    assert capsys.readouterr().out == ""
