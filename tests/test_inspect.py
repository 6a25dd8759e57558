"""`inspect`: graphs, tokens over them, and documents walked through a grammar."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from strategies import languages
from tokenizers import pre_tokenizers

import jumpforward as jf
from jumpforward import cli
from jumpforward.report import inspect
from jumpforward.report.overlay import Tokens
from jumpforward.report.walk import walk
from jumpforward.testing import toy_tokenizer

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]}


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["jumpforward", "inspect", *words])
    monkeypatch.setattr(inspect, "tokens_of", lambda _: Tokens(toy_tokenizer(["am", "me", "na", "ame", "nam", "name"])))
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code or 0


@given(languages)
def test_a_walk_says_of_every_byte_whether_it_was_forced(language: list[str]) -> None:
    members = [text.encode() for text in language]
    for data in members:
        found = walk(jf.choice(language), data)
        assert found.is_complete
        assert len(found.forced) == len(data)
        for place, forced in enumerate(found.forced):
            alike = [other for other in members if other.startswith(data[:place])]
            assert forced == (data[:place] not in members and len({other[place] for other in alike}) == 1)
        assert [choice.place for choice in found.choices] == [
            at for at, forced in enumerate(found.forced) if not forced
        ]
        assert b"".join(piece for _, piece in found.spans()) == data


@pytest.mark.parametrize(
    ("document", "place", "expected"),
    [(b'{"a": 1, "b": "z"}', 15, b"xy"), (b'{"b"', 2, b"a"), (b'{"a": 1, "b": "x"} ', 18, b""), (b"", 0, b"{")],
)
def test_a_rejected_document_names_the_byte_and_what_was_legal(document: bytes, place: int, expected: bytes) -> None:
    found = walk(jf.json_schema(SCHEMA), document)
    assert not found.is_complete
    assert len(found.forced) == place
    assert found.expected == expected


def test_case_6_whitespace_is_named_as_the_reason() -> None:
    document = b'{"a": 1, "b": "x"}'
    fixed = walk(jf.json_schema(SCHEMA), document)
    flexible = walk(jf.json_schema(SCHEMA, whitespace="flexible"), document)
    assert fixed.share_forced_bytes > 0.8
    assert flexible.share_forced_bytes < 0.6
    assert "whitespace" in {choice.stop for choice in flexible.choices}
    assert "whitespace" not in {choice.stop for choice in fixed.choices}


def test_tokens_are_forced_where_all_their_bytes_are() -> None:
    found = walk(jf.choice(["abcx", "abcy"]), b"abcx")
    assert found.num_forced_tokens([1, 2, 1]) == 2
    assert found.num_forced_tokens([1, 1, 2]) == 2
    assert found.num_forced_tokens([4]) == 0


def test_withheld_tokens_name_a_longer_one() -> None:
    overlay = Tokens(toy_tokenizer(["am", "ame"])).over(b"xam")
    assert overlay is not None
    assert overlay.stable + overlay.withheld == (b"x", b"am")
    assert overlay.rival == b"ame"
    spanned = Tokens(toy_tokenizer(["ya", "xa"])).over(b"zxy")
    assert spanned is not None
    assert (spanned.stable, spanned.withheld, spanned.rival) == ((b"z", b"x"), (b"y",), b"ya")
    settled = Tokens(toy_tokenizer(["ya", "xa"])).over(b"xyz")
    assert settled is not None
    assert (settled.withheld, settled.rival) == ((), None)


def test_the_graph_of_a_regular_grammar(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "--regex", "ab(cde)?", "--tokenizer", "toy") == 0
    output = capsys.readouterr().out
    assert "ab  -> 1 (accepting)" in output
    assert "cde  -> 2 (accepting)" in output
    assert "3 nodes, 2 edges from 6 states" in output
    assert "matched by an automaton" in output


def test_the_graph_of_a_schema_says_how_it_was_made(monkeypatch, capsys, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    assert run(monkeypatch, "--schema", str(path), "--depth", "2") == 0
    output = capsys.readouterr().out
    assert "unfolded from xgrammar's rules" in output
    assert "max_depth=2" in output
    assert run(monkeypatch, "--schema", str(path), "--format", "json", "--tokenizer", "toy") == 0
    layout = json.loads(capsys.readouterr().out)
    assert layout["edges"][0]["label"] == '{"a": '
    assert layout["tokens"]
    assert run(monkeypatch, "--schema", str(path), "--format", "dot") == 0
    assert capsys.readouterr().out.startswith("digraph")


def test_a_document_is_walked_under_both_whitespace_policies(monkeypatch, capsys, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    words = ("--schema", str(path), "--text", '{"a": 1, "b": "x"}', "--tokenizer", "toy")
    assert run(monkeypatch, *words) == 0
    output = capsys.readouterr().out
    assert "fixed" in output
    assert "flexible" in output
    assert run(monkeypatch, *words, "--format", "json") == 0
    layout = json.loads(capsys.readouterr().out)
    assert layout["fixed"]["num_forced_tokens"] > layout["flexible"]["num_forced_tokens"]
    assert run(monkeypatch, *words[:3], '{"c"') == 1
    assert "rejected at byte 2 of 4: 'c' came, legal was [a]" in capsys.readouterr().out


def test_the_eight_segmentations_of_name(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "--segmentations", "name", "--tokenizer", "toy") == 0
    assert capsys.readouterr().out.splitlines() == [
        "8 segmentations of 'name'",
        "n a m e",
        "n a me",
        "n am e",
        "n ame",
        "na m e",
        "na me",
        "nam e",
        "name",
    ]
    assert run(monkeypatch, "--segmentations", "name") == 1
    assert run(monkeypatch, "--regex", "a", "--text", "a", "--format", "svg") == 1


def test_without_graphviz_the_graph_comes_as_dot(monkeypatch, capsys) -> None:
    monkeypatch.setattr(cli.shutil, "which", lambda _: None)
    assert run(monkeypatch, "--regex", "a|b", "--format", "svg") == 0
    output = capsys.readouterr()
    assert output.out.startswith("digraph")
    assert "not installed" in output.err


def test_a_tokenizer_that_is_not_understood_says_so() -> None:
    tokenizer = toy_tokenizer(["ab"])
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation(), tokenizer.backend_tokenizer.pre_tokenizer]
    )
    overlay = Tokens(tokenizer).over(b"ab")
    assert overlay is not None
    assert (overlay.stable, overlay.withheld) == ((), (b"ab",))
    assert "Punctuation" in overlay.reason
