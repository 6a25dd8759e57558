"""A report from corpus to files: reading, resuming, giving up, JSON, and a page that a browser shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import reduce
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers import favouring
from rich.console import Console

import jumpforward as jf
from jumpforward import cli
from jumpforward.report import corpus, pool
from jumpforward.report.build import Job, build
from jumpforward.report.corpus import Row
from jumpforward.report.html import script_json
from jumpforward.report.layout import written_whole
from jumpforward.report.measure import measure
from jumpforward.report.overlay import Tokens
from jumpforward.report.partial import Partial, fingerprint
from jumpforward.report.pool import measured
from jumpforward.report.published import published_table
from jumpforward.report.results import SchemaResult
from jumpforward.report.runs import Runs, runs_tables
from jumpforward.report.settings import Options, Setting
from jumpforward.report.totals import Totals
from jumpforward.testing import ScriptedModel, toy_tokenizer

HOSTILE = '</script><script>document.title="hacked"</script><img src=x onerror=alert(1)>&\u2028"\'`${1}'
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}
ROWS: list[dict[str, Any]] = [
    {"id": "person", "split": "A", "schema": PERSON,
     "valid": [{"name": "na", "age": 7}, {"age": 1, "name": "x"}, {"x": 1}]},
    {"id": HOSTILE, "split": HOSTILE,
     "schema": {"type": "object", "properties": {HOSTILE: {"const": HOSTILE}}, "required": [HOSTILE]},
     "valid": [{HOSTILE: HOSTILE}, {HOSTILE: 1}]},
    {"id": "sampled", "split": "B", "schema": {"type": "array", "items": {"type": "boolean"}}},
    {"id": "broken", "split": "B", "schema": {"type": "no such type"}, "valid": [1]},
    {"id": "no schema"},
]  # fmt: skip
SETTINGS = (Setting(), Setting(whitespace="flexible"))
SHARED = Path(__file__).parent.parent.parent / "shared" / "data"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a toy tokenizer, for processes that load it by name."""
    folder = tmp_path_factory.mktemp("toy")
    toy_tokenizer(['{"', '":', "name", "age", ', "', ' "']).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "not JSON\n")
    return path


def options(*tokenizers: str, **others: Any) -> Options:
    return Options(settings=SETTINGS, tokenizers=tokenizers, **others)


def in_process(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Measure in this process, which takes no seconds to start."""
    tokens = {name: Tokens(toy_tokenizer(['{"', '":', "name", "age", ', "', ' "']))}

    def measure_here(rows: Any, asked: Options, _: int) -> Any:
        return (measure(row, asked, tokens if asked.tokenizers else {}) for row in rows)

    monkeypatch.setattr("jumpforward.report.build.measured", measure_here)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["jumpforward", "report", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code or 0


# -- corpora --


def test_rows_of_a_file(path: Path) -> None:
    rows = list(corpus.rows(path))
    assert corpus.num_rows(path) == len(rows) == 6
    assert [row.index for row in rows] == list(range(6))
    assert (rows[0].id, rows[0].group, rows[0].schema_, len(rows[0].instances)) == ("person", "A", PERSON, 3)
    assert [row.problem is not None for row in rows] == [False, False, False, False, True, True]
    assert [row.id for row in corpus.limited(corpus.rows(path), 2)] == ["person", HOSTILE]


def test_a_folder_of_schemas_with_instances(tmp_path: Path) -> None:
    (tmp_path / "b.schema.json").write_text(json.dumps(PERSON))
    (tmp_path / "a.schema.json").write_text("{")
    (tmp_path / "other.json").write_text("1")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.json").write_text('{"name": "x"}')
    (tmp_path / "b.jsonl").write_text('{"name": "y"}\n\n{"name": "z"}\n')
    first, second = corpus.rows(tmp_path)
    assert first.problem is not None
    assert (second.id, [value["name"] for value in second.instances]) == ("b", ["x", "y", "z"])
    assert [row.id for row in corpus.rows(tmp_path / "b.schema.json")] == ["b"]
    with pytest.raises(jf.OptionError, match="JSONL file, a folder"):
        corpus.num_rows(tmp_path / "missing")


# -- the whole --


def test_json_and_page_and_terminal(monkeypatch, capsys, tmp_path: Path, path: Path) -> None:
    in_process(monkeypatch, "toy")
    out, page = tmp_path / "report.json", tmp_path / "report.html"
    words = ("--tokenizer", "toy", "--json", str(out), "--out", str(page), "--chunk-cost", "1:1,8:2", "--jobs", "1")
    assert run(monkeypatch, str(path), *words) == 0
    printed = capsys.readouterr().out
    for title in ("Documents", "How much is forced", "Forward passes predicted", "Why forcing stops", "By group"):
        assert title in printed
    layout = json.loads(out.read_text())
    assert list(layout) == [
        "format", "version", "jumpforward", "corpus", "options", "totals", "chunk_cost", "payoffs", "runs", "schemas",
    ]  # fmt: skip
    assert (layout["format"], layout["version"], layout["runs"]) == ("jumpforward.report", 1, None)
    schemas = [SchemaResult.model_validate(item) for item in layout["schemas"]]
    assert [one.id for one in schemas] == ["person", HOSTILE, "sampled", "broken", "no schema", "row 6"]
    assert [one.documents for one in schemas] == ["real", "real", "sampled", "real", "real", "real"]
    assert [one.problem is not None for one in schemas] == [False] * 4 + [True] * 2
    assert all(one.failure for one in schemas[3].settings)

    totals = Totals()
    for one in schemas:
        totals.add(one)
    assert Totals.model_validate(layout["totals"]) == totals
    assert (totals.num_schemas, totals.num_problems) == (6, 2)
    whole = totals.tallies["real"][""]["strict, fixed"]
    parts = [groups["strict, fixed"] for name, groups in totals.tallies["real"].items() if name]
    assert whole == sum(parts[1:], parts[0])
    assert (whole.num_accepted, whole.num_reordered, whole.num_rejected, whole.num_failed) == (3, 1, 2, 1)
    assert whole.num_accepted + whole.num_rejected + whole.num_unwalked == sum(
        len(row.get("valid", ())) for row in ROWS
    )
    assert totals.tallies["sampled"][""]["strict, fixed"].num_accepted == 2
    assert not list(tmp_path.glob("*.partial.jsonl"))
    assert not list(tmp_path.glob("*.unfinished"))


def test_pictures_are_svg_and_escaped(monkeypatch, tmp_path: Path) -> None:
    in_process(monkeypatch, "toy")
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps(ROWS[1]) + "\n")
    assert run(monkeypatch, str(path), "--tokenizer", "toy", "--pictures", str(tmp_path)) == 0
    pictures = {file.name: ElementTree.parse(file) for file in tmp_path.glob("*.svg")}
    assert set(pictures) == {"document.svg", *(f"plot-{number}.svg" for number in range(1, 5))}
    namespace = "{http://www.w3.org/2000/svg}"
    assert all(tree.getroot().tag == f"{namespace}svg" for tree in pictures.values())
    shown = "".join(element.text or "" for element in pictures["document.svg"].iter(f"{namespace}text"))
    assert json.dumps({HOSTILE: HOSTILE}, ensure_ascii=False) in shown
    assert not list(pictures["document.svg"].iter(f"{namespace}script"))


def test_strings_of_a_corpus_cannot_leave_the_script_of_a_page() -> None:
    text = script_json({"key": HOSTILE})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"key": HOSTILE}


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("before")

    def fail() -> None:
        with written_whole(target) as file:
            file.write("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert target.read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_a_browser_shows_the_page(monkeypatch, tmp_path: Path, path: Path) -> None:
    in_process(monkeypatch, "toy")
    page, picture = tmp_path / "report.html", tmp_path / "page.png"
    assert run(monkeypatch, str(path), "--tokenizer", "toy", "--out", str(page)) == 0
    flags = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}")
    address = page.as_uri()

    def chromium(*more: str) -> str:
        command = [str(BROWSER), *flags, *more, address]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    shown = chromium("--dump-dom", "--virtual-time-budget=5000")
    assert "<title>Forced text: corpus.jsonl</title>" in shown
    assert shown.count('<tr class="row">') == 6
    assert 'class="part forced"' in shown
    assert 'class="part branch stop"' in shown
    assert "&lt;/script&gt;&lt;script&gt;document.title" in shown  # as text, in a cell
    assert "<img src=" not in shown
    names = ("www.w3.org", "purl.org", "creativecommons.org")  # of XML dialects in the plots; nothing is fetched
    addresses = set(re.findall(r"https?://([^/\s\"]+)", page.read_text()))
    assert addresses <= set(names)
    chromium(f"--screenshot={picture}", "--window-size=1000,1400")
    assert picture.read_bytes().startswith(b"\x89PNG")


# -- interrupted, given up, gone on --


def test_partial_results_are_kept_for_the_same_arguments_only(tmp_path: Path) -> None:
    file = tmp_path / "report.partial.jsonl"
    with Partial(file, "key") as partial:
        for index in (2, 0):
            partial.append(SchemaResult(index=index, id=str(index)))
    with file.open("ab") as torn:
        torn.write(b'{"index": 1, "id"')
    with Partial(file, "key") as partial:
        assert (partial.num_kept, partial.is_other) == (2, False)
        assert [index in partial for index in range(3)] == [True, False, True]
        partial.append(SchemaResult(index=1, id="1"))
        assert [result.id for result in partial.results()] == ["0", "1", "2"]
    with Partial(file, "key") as partial:
        assert partial.num_kept == 3
    with Partial(file, "other") as partial:
        assert (partial.num_kept, partial.is_other) == (0, True)
        assert list(partial.results()) == []


def test_the_fingerprint_is_that_of_content_and_options(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("x")
    first = fingerprint(path, options())
    assert first == fingerprint(path, options())
    assert first != fingerprint(path, options(seed=1))
    path.write_text("y")
    assert first != fingerprint(path, options())
    assert fingerprint(tmp_path, options()) == fingerprint(tmp_path, options())


def test_an_interrupted_report_goes_on_where_it_was(monkeypatch, capsys, tmp_path: Path, path: Path) -> None:
    asked: list[str] = []

    def breaking(rows: Any, wanted: Options, _: int) -> Any:
        for row in rows:
            asked.append(row.id)
            if len(asked) == 3:
                raise KeyboardInterrupt
            yield measure(row, wanted, {})

    whole, resumed = tmp_path / "whole.json", tmp_path / "resumed.json"
    in_process(monkeypatch, "toy")
    assert run(monkeypatch, str(path), "--tokenizer", "none", "--json", str(whole)) == 0
    monkeypatch.setattr("jumpforward.report.build.measured", breaking)
    words = (str(path), "--tokenizer", "none", "--json", str(resumed))
    assert run(monkeypatch, *words) == 130
    assert not resumed.exists()
    assert run(monkeypatch, *words) == 0
    assert "going on behind 2 schemas" in capsys.readouterr().err
    assert asked == ["person", HOSTILE, "sampled", "sampled", "broken", "no schema", "row 6"]
    assert resumed.read_text() == whole.read_text()


def test_a_killed_report_goes_on_too(tmp_path: Path, toy: str) -> None:
    path, out = tmp_path / "corpus.jsonl", tmp_path / "report.json"
    slow = {"id": "3", "schema": {"type": "string"}, "valid": ["x" * 10_000]}  # seconds, in which the process is killed
    rows = [slow if index == 3 else ROWS[0] | {"id": str(index)} for index in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        "report",
        str(path),
        "--tokenizer",
        toy,
        "--json",
        str(out),
        "--jobs",
        "1",
        "--whitespace",
        "fixed",
        "--reading",
        "strict",
    ]
    command = [sys.executable, "-c", "from jumpforward.cli import main; main()", *words]
    partial = out.with_name("report.json.partial.jsonl")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and (not partial.exists() or partial.read_bytes().count(b"\n") < 4):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    num_kept = partial.read_bytes().count(b"\n") - 1
    assert num_kept == 3
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"going on behind {num_kept} schemas" in again.stderr
    schemas = json.loads(out.read_text())["schemas"]
    assert [one["id"] for one in schemas] == [str(index) for index in range(6)]
    assert len({json.dumps(one["settings"]) for one in schemas}) == 2


def test_a_schema_that_takes_too_long_is_given_up(toy: str) -> None:
    rows = [
        Row(index=0, id="before", schema_=PERSON, instances=[{"name": "x"}]),
        Row(index=1, id="slow", schema_={"type": "string"}, instances=["x" * 1_000_000]),
        Row(index=2, id="after", schema_=PERSON, instances=[{"name": "y"}]),
        Row(index=3, id="deep", schema_={}, instances=[reduce(lambda inner, _: [inner], range(100_000), 1)]),
    ]
    results = {result.id: result for result in measured(rows, options(toy, time_limit_s=3.0), 1)}
    assert set(results) == {"before", "slow", "after", "deep"}
    assert results["deep"].problem == "nested too deeply"
    assert results["slow"].problem == "given up after 3 s"
    assert results["before"].problem is results["after"].problem is None


def test_a_process_that_dies_loses_one_schema(toy: str, monkeypatch) -> None:
    """A schema's process is killed while it works on it; the next one takes a new process."""
    rows = [
        Row(index=0, id="killed", schema_={"type": "string"}, instances=["x" * 1_000_000]),
        Row(index=1, id="after", schema_=PERSON, instances=[{"name": "y"}]),
    ]
    given = pool._Worker.give

    def give(worker: Any, row: Row, time_limit_s: float) -> None:
        given(worker, row, time_limit_s)
        if row.id == "killed":
            worker.process.kill()

    monkeypatch.setattr(pool._Worker, "give", give)
    results = {result.id: result for result in measured(rows, options(toy), 1)}
    assert results["killed"].problem == f"its process ended ({-signal.SIGKILL})"
    assert results["after"].problem is None


def test_tokenizers_that_cannot_be_used_end_the_report(tmp_path: Path) -> None:
    with pytest.raises(jf.TokenizerError, match="no usable tokenizer"):
        list(measured([], options(str(tmp_path)), 1))


# -- options, runs --


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.jsonl"], "JSONL file"),
        ([os.devnull], "JSONL file"),
        (["{path.parent}"], "at least one schema"),
        (["{path}", "--chunk-cost", "2:1"], "--chunk-cost"),
        (["{path}", "--tokenizer", "none", "--tokenizer", "default"], "'none' alone"),
        (["{path}", "--json", "no/such/folder.json"], "folder that exists"),
        (["{path}", "--from-results", "{path}"], "--from-results"),
        (["{path}", "--whitespace", "some"], "--whitespace"),
        (["{path}", "--jobs", "0"], "--jobs"),
        (["{path}", "--pictures", "no/such/folder"], "folder that exists"),
    ],
)
def test_mistakes_are_one_line(monkeypatch, capsys, path: Path, words: list[str], message: str) -> None:
    assert run(monkeypatch, *(word.format(path=path) for word in words)) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1
    assert message in printed.err


def test_results_of_runs_stand_beside_the_prediction(monkeypatch, tmp_path: Path) -> None:
    tokenizer = toy_tokenizer(['{"', '":', "name", "age", ', "', ' "'])
    text = '{"name": "x", "age": 12}'
    records = []
    for policy in ("masked", "exact", "canonical"):
        model = ScriptedModel(favouring(text, tokenizer), len(tokenizer))
        engine = jf.Engine(model, tokenizer, drafters=["forced"])  # what is predicted
        records.append(engine.generate("x", jf.json_schema(PERSON), policy=policy).record())
    file, schema = tmp_path / "runs.jsonl", tmp_path / "person.json"
    schema.write_text(json.dumps(PERSON))
    extra = [records[0] | {"id": "elsewhere"}, records[1] | {"complete": False}]
    extra.append({"line": 3, "error": {"type": "OptionError", "message": "no prompt"}})  # of `jumpforward batch`
    file.write_text("".join(json.dumps(record) + "\n" for record in records + extra))

    in_process(monkeypatch, "toy")
    runs = Runs(file)
    totals = build(Job(schema, options("toy"), runs=runs), Console(quiet=True))
    assert (runs.totals.num_records, runs.totals.num_errors, runs.totals.num_unmatched) == (5, 1, 1)
    assert runs.totals.policies["exact"].num_complete == 1
    assert runs.totals.policies["masked"].numbers["num_output_tokens"] == 2 * records[0]["stats"]["num_output_tokens"]
    tally = totals.tallies["results"][""]["strict, fixed"]
    assert (tally.num_accepted, tally.bytes.num_bytes) == (3, 3 * len(text))
    for policy in ("exact", "canonical"):
        predicted = tally.tokens["toy"].passes[f"{policy}_fewest"]
        assert predicted == 3 * records[["masked", "exact", "canonical"].index(policy)]["stats"]["num_forward_passes"]
    passes, tokens, chunks, sources = runs_tables(runs.totals, totals)
    assert "not counted: 1" in passes.note
    for table in (passes, tokens, chunks):
        assert [row[0] for row in table.rows] == ["masked", "exact", "canonical"]
    for policy, *counted in chunks.rows:
        assert sum(map(int, counted)) == runs.totals.policies[policy].numbers["num_forward_passes"]
    for policy, *counted in tokens.rows:
        numbers = runs.totals.policies[policy].numbers
        assert int(counted[0]) == numbers["num_seams_sampled"]
        assert int(counted[1]) == numbers["num_seams_forced"]
    exact = runs.totals.policies["exact"]
    assert [row[1] for row in sources.rows if row[0] == "exact"] == list(exact.sources)
    assert exact.sources["forced"].num_accepted == exact.numbers["num_drafted"] > 0


# -- the yardstick --

# Pooled per cent of tokens inside forced text and of bytes, for strict and open, fixed and flexible; see the data's
# README. A split that is quick to walk.
_YARDSTICK = {
    "strict, fixed": (62.4, 71.8),
    "strict, flexible": (31.7, 52.2),
    "open, fixed": (62.4, 71.8),
    "open, flexible": (31.7, 52.2),
}


@pytest.mark.model
@pytest.mark.skipif(not SHARED.is_dir(), reason="the corpus is not here")
def test_the_yardstick_of_a_split(real_engine: jf.Engine) -> None:
    settings = tuple(
        Setting(strictness=strictness, whitespace=spaces)
        for strictness in ("strict", "open")
        for spaces in ("fixed", "flexible")
    )
    tokens = {"default": Tokens(real_engine.tokenizer)}
    totals = Totals()
    for row in corpus.rows(SHARED / "jsonschemabench_dev.jsonl"):
        if row.group.startswith("BFCL"):
            totals.add(measure(row, Options(settings=settings, tokenizers=("default",)), tokens))
    whole = totals.tallies["real"][""]
    for name, (in_tokens, in_bytes) in _YARDSTICK.items():
        assert 100 * whole[name].tokens["default"].share_forced == pytest.approx(in_tokens, abs=1)
        assert 100 * whole[name].bytes.share_forced == pytest.approx(in_bytes, abs=1)


def test_published_shares_stand_beside_those_of_the_same_groups() -> None:
    totals = Totals()
    tokens = {"toy": Tokens(toy_tokenizer())}
    for group in ("Glaiveai2K", "Kubernetes"):
        assert not published_table(totals).rows
        row = Row(index=0, id=group, group=group, schema_=PERSON, instances=[{"name": "x"}])
        totals.add(measure(row, options("toy"), tokens))
    rows = published_table(totals).rows
    shares = [["all", "13 %", "15 %"], ["Glaiveai2K", "21 %", "25 %"], ["Kubernetes", "9 %", "10 %"]]
    assert [row[:3] for row in rows] == shares
    counts = totals.tallies["real"][""]["strict, fixed"].tokens["toy"]
    assert rows[0][3] == f"{100 * counts.share_forced:.1f} / {100 * counts.share_stable:.1f} %"
