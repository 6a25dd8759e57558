"""``jumpforward batch``: every line once, in order and whole, however often and whenever it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from helpers import scripted_engine, tiny_model

import jumpforward as jf
from jumpforward import batch_command, cli
from jumpforward.errors import OptionError, OutOfMemoryError
from jumpforward.result_file import ResultFile
from jumpforward.testing import toy_tokenizer

PIECES = ['{"', '":', ' "', "ab", "true", "false", ": "]
SCHEMA = {"type": "object", "properties": {"ab": {"type": "boolean"}}, "required": ["ab"]}
OTHER = {"enum": ["ab", "ba"]}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> jf.Engine:
    engine = scripted_engine(PIECES)
    engine.tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}>"
    monkeypatch.setattr(cli, "_engine", lambda *_, **limits: jf.Engine(engine.model, engine.tokenizer, **limits))
    return engine


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return str(path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"prompt": "x" * count}) + "\n" for count in range(1, 8)))
    return path


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> Any:
    monkeypatch.setattr(sys, "argv", ["jumpforward", "batch", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code or 0


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def fed(engine: jf.Engine) -> list[str]:
    return [engine.tokenizer.decode(row) for call in engine.model.calls for row in call]


def outcomes(found: list[dict[str, Any]]) -> list[Any]:
    return [(record["line"], record.get("text"), record.get("token_ids"), record.get("error")) for record in found]


def test_one_result_a_line_in_order_as_alone(monkeypatch, capsys, engine, schema, source, tmp_path) -> None:
    target = tmp_path / "out.jsonl"
    words = ("--schema", schema, "--raw", "--temperature", "1", "--seed", "5")
    assert run(monkeypatch, source, target, *words) == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert "7/7" in output.err
    found = records(target)
    alone = [
        engine.generate("x" * line, jf.json_schema(SCHEMA), temperature=1.0, seed=4 + line).token_ids
        for line in range(1, 8)
    ]
    assert [record["token_ids"] for record in found] == alone
    assert [record["line"] for record in found] == list(range(1, 8))
    assert all(record["parsed"].keys() == {"ab"} and record["stats"]["policy"] == "exact" for record in found)


@pytest.mark.parametrize("len_torn", [0, 1, 40])
def test_goes_on_behind_any_number_of_lines(monkeypatch, engine, schema, source, tmp_path, len_torn) -> None:
    whole, target = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    words = ("--schema", schema, "--raw")
    assert run(monkeypatch, source, whole, *words) == 0
    lines = whole.read_bytes().splitlines(keepends=True)
    job = whole.with_name("whole.jsonl.job").read_bytes()
    for num_done in range(8):
        target.write_bytes(b"".join(lines[:num_done]) + b"".join(lines[num_done:])[:len_torn])
        target.with_name("out.jsonl.job").write_bytes(job)
        engine.model.calls.clear()
        assert run(monkeypatch, source, target, *words, "--batch-size", 2) == 0
        assert outcomes(records(target)) == outcomes(records(whole))
        prompts = {text.count("x") for text in fed(engine) if text.startswith("x")}
        assert prompts == set(range(num_done + 1, 8))  # nothing is made twice


def test_a_cut_at_every_byte_of_a_file_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    made = [{"line": 1, "text": "é\n"}, {"line": 2, "error": "\udcff"}, {"line": 3, "text": "\u2028"}]
    with ResultFile(path, {"a": 1}) as results:
        results.append(made)
        assert (results.num_lines, results.num_errors) == (3, 1)
    data = path.read_bytes()
    for end in range(len(data) + 1):
        path.write_bytes(data[:end])
        num_whole = data[:end].count(b"\n")
        with ResultFile(path, {"a": 1}) as results:
            assert results.num_lines == num_whole
            assert results.num_errors == (num_whole >= 2)
            results.append(made[num_whole:])
        assert path.read_bytes() == data
    assert [json.loads(line) for line in data.split(b"\n")[:-1]] == made


def test_bad_lines_become_records_and_the_others_run(monkeypatch, capsys, engine, tmp_path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        json.dumps({"prompt": "a", "schema": SCHEMA}).encode(),
        b"{not json",
        b"",
        b"[1]",
        b'"\xff"',
        json.dumps({"schema": SCHEMA}).encode(),
        json.dumps({"prompt": "a"}).encode(),
        json.dumps({"prompt": "a", "schema": {"type": "nonsense"}}).encode(),
        json.dumps({"prompt": "", "schema": SCHEMA}).encode(),
        json.dumps({"prompt": 3, "schema": SCHEMA}).encode(),
        json.dumps({"prompt": [{"role": "user", "content": "m"}], "schema": OTHER}).encode(),
    ]
    source.write_bytes(b"\n".join(lines))  # the last has no end of line
    for _ in range(2):  # the second time there is nothing left to do, and the same to say
        assert run(monkeypatch, source, target) == 3
        assert "9 of 11" in capsys.readouterr().err
    found = records(target)
    assert [record["line"] for record in found] == list(range(1, 12))
    errors = {record["line"]: record["error"] for record in found if "error" in record}
    assert [errors[line]["type"] for line in sorted(errors)] == [
        *["BadLineError"] * 6,
        "GrammarError",
        *["PromptError"] * 2,
    ]
    assert "'prompt'" in errors[6]["message"]
    assert "'schema'" in errors[7]["message"]
    assert found[0]["parsed"].keys() == {"ab"}
    assert found[10]["parsed"] in ("ab", "ba")


@pytest.mark.usefixtures("engine")
def test_prompts_come_from_a_field_or_a_template(monkeypatch, engine, schema, tmp_path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"text": "t", "n": 2}) + "\n")
    for index, (words, prompt) in enumerate(
        [
            (("--prompt-field", "text"), "<user>t>"),
            (("--prompt-field", "text", "--system", "s"), "<system>s<user>t>"),
            (("--prompt-template", "{{ text }}-{{ n + 1 }}", "--raw"), "t-3"),
        ]
    ):
        engine.model.calls.clear()
        assert run(monkeypatch, source, tmp_path / f"{index}.jsonl", "--schema", schema, *words) == 0
        assert any(text.startswith(prompt) for text in fed(engine))
    target = tmp_path / "bad.jsonl"
    assert run(monkeypatch, source, target, "--schema", schema, "--prompt-template", "{{ missing }}") == 3
    assert "missing" in records(target)[0]["error"]["message"]


@pytest.mark.usefixtures("engine")
def test_other_arguments_are_refused(monkeypatch, capsys, schema, source, tmp_path) -> None:
    target = tmp_path / "out.jsonl"
    words = ["--schema", schema, "--raw", "--policy", "masked"]
    assert run(monkeypatch, source, target, *words) == 0
    before = target.read_bytes()
    capsys.readouterr()
    for change, option in [
        (["--policy", "exact"], "--policy"),
        (["--max-new-tokens", "9"], "--max-new-tokens"),
        (["--temperature", "1"], "--temperature"),
        (["--open"], "--open"),
    ]:
        assert run(monkeypatch, source, target, *words, *change) == 1
        message = capsys.readouterr().err.replace("\n", " ")
        assert message.startswith(f"error: {option}=")
        assert "was begun" in message
    source.write_text(source.read_text().replace("x", "y"))
    assert run(monkeypatch, source, target, *words) == 1
    assert "INPUT" in capsys.readouterr().err
    assert target.read_bytes() == before


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--top-p", "0.5"], "temperature above 0"),
        (["--batch-size", "0"], "--batch-size"),
        (["--max-new-tokens", "0"], "--max-new-tokens"),
        (["--prompt-template", "{{"], "Jinja"),
        (["--prompt-template", "x", "--prompt-field", "y"], "--prompt-field"),
        (["--schema", "missing.json"], "No such file"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(monkeypatch, capsys, source, tmp_path, words, message) -> None:
    assert run(monkeypatch, source, tmp_path / "out.jsonl", *words) == 1
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


@pytest.mark.usefixtures("engine")
def test_files_that_cannot_be_used(monkeypatch, capsys, source, tmp_path) -> None:
    target = tmp_path / "out.jsonl"
    assert run(monkeypatch, tmp_path / "none.jsonl", target) == 1
    assert "none.jsonl" in capsys.readouterr().err
    assert run(monkeypatch, source, source / "folder.jsonl") == 1
    assert "can be written" in capsys.readouterr().err
    target.write_text("mine\n")
    assert run(monkeypatch, source, target) == 1
    assert "a new file" in capsys.readouterr().err
    assert target.read_text() == "mine\n"


def test_a_file_has_one_writer_and_is_not_mended_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with FileLock(f"{path}.lock"), pytest.raises(OptionError, match="other process"), ResultFile(path, {}):
        pass
    with ResultFile(path, {}) as results:
        results.append([{"line": 1}, {"line": 2}])
    path.write_text('{"line": 2}\n')
    with pytest.raises(OptionError, match="line 1"), ResultFile(path, {}):
        pass
    assert path.read_text() == '{"line": 2}\n'


def test_what_is_not_a_lines_fault_ends_the_run(monkeypatch, capsys, engine, schema, source, tmp_path) -> None:
    def no_room(_: Any) -> None:
        raise OutOfMemoryError("no room")

    target = tmp_path / "out.jsonl"
    monkeypatch.setattr(jf.Handle, "result", no_room)
    assert run(monkeypatch, source, target, "--schema", schema, "--raw") == 1
    monkeypatch.undo()
    assert target.read_bytes() == b""


def test_requests_run_ahead_of_the_oldest_by_a_few_batches(monkeypatch, engine, schema, tmp_path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "x"}\n' * 40)
    waiting: list[int] = []

    def watched(_: Any, reader: Any, line: bytes, number: int) -> jf.JumpForwardError:
        waiting.append(number - sum(1 for _ in target.open("rb")))
        return started(_, reader, line, number)

    started = batch_command._started
    monkeypatch.setattr(batch_command, "_started", watched)
    monkeypatch.setattr(batch_command, "_has_ended", lambda _: False)  # the oldest is always the slowest
    assert run(monkeypatch, source, target, "--schema", schema, "--raw", "--batch-size", "2") == 0
    assert max(waiting) == 8
    assert len(records(target)) == 40


# One process imports everything; each of its children runs the command, and is killed once the file has grown.
KILLED = """
import os, signal, sys, time
import torch, transformers
from jumpforward import cli
target, model, *words = sys.argv[1:]
words += ["--model", model]
torch.set_num_threads(1)
cli._engine(model, None)  # imports what children need

def size():
    return os.path.getsize(target) if os.path.exists(target) else 0

def child():
    pid = os.fork()
    if pid == 0:
        sys.argv = ["jumpforward", "batch", *words]
        cli.main()
    return pid

for delay in range(5):
    before, pid = size(), child()
    while size() <= before and os.waitpid(pid, os.WNOHANG) == (0, 0):
        time.sleep(0.001)
    time.sleep(delay * 0.004)
    os.kill(pid, signal.SIGKILL)
    print(os.waitpid(pid, 0)[1], size(), flush=True)
print(os.waitstatus_to_exitcode(os.waitpid(child(), 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_again_and_again_nothing_is_lost_doubled_or_torn(tmp_path: Path) -> None:
    tokenizer = toy_tokenizer(PIECES)
    model = tiny_model("llama", len(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps({"prompt": f"{number} x", "schema": SCHEMA if number % 2 else OTHER}) for number in range(60)]
    lines[20] = "bad"
    source.write_text("\n".join(lines) + "\n")
    words = [str(source), str(target), "--raw", "--batch-size", "2"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(target), str(tmp_path / "model"), *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    *kills, code = done.stdout.split("\n")[:-1]
    statuses, sizes = zip(*(map(int, line.split()) for line in kills), strict=True)
    assert statuses == (signal.SIGKILL,) * 5  # none had come to its end
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] < target.stat().st_size
    assert code == "3"
    engine = jf.Engine(model, tokenizer)
    found = records(target)
    assert [record["line"] for record in found] == list(range(1, 61))
    for line, record in zip(lines, found, strict=True):
        if line == "bad":
            assert record["error"]["type"] == "BadLineError"
            continue
        fields = json.loads(line)
        assert record["token_ids"] == engine.generate(fields["prompt"], jf.json_schema(fields["schema"])).token_ids
