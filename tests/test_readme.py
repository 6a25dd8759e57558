"""Every code block of the README runs, and what it prints is what the README says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
COMMANDS = [
    line for language, code in BLOCKS if language == "sh" for line in code.replace("\\\n", "").splitlines() if line
]
# Commands that set up a machine or take minutes; continuous integration runs `make` itself.
SET_UP = ("make ", "pip ", "git ", "python experiments/")


def test_every_block_has_a_language_that_is_tried_here() -> None:
    assert {language for language, _ in BLOCKS} <= {"python", "sh", "text"}
    assert PYTHON
    assert COMMANDS


@pytest.mark.model
def test_python_blocks_run_in_order() -> None:
    scope: dict[str, object] = {}
    for code in PYTHON:
        exec(compile(code, "README.md", "exec"), scope)


@pytest.mark.model
@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("jumpforward ")])
def test_command_runs(command: str, tmp_path: Path) -> None:
    for name, content in re.findall(r"`(\S+\.jsonl?)` as\n\n```text\n(.*?)```", README, re.DOTALL):
        (tmp_path / name).write_text(content)
    words = shlex.split(command)[1:]
    run = subprocess.run(
        [sys.executable, "-c", "from jumpforward.cli import main; main()", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    if " batch " in command:
        assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2
    else:
        assert run.stdout.strip()


def test_other_commands_are_known() -> None:
    for command in COMMANDS:
        assert command.startswith(("jumpforward ", *SET_UP)), command


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in COMMANDS:
        if command.startswith("make "):
            target = shlex.split(command, comments=True)[1]
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
