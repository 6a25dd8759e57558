"""Imports point down one list, and importing the package is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import jumpforward as jf

PACKAGE = Path(jf.__file__).parent
LAYERS = [
    {"errors", "stats"},
    {"grammar", "vocab"},
    {"matching"},
    {"decoding"},
    {"engine"},
    {"hf", "hf_engines", "hf_rows"},
    {"report", "cli", "batch_command", "result_file", "bench", "demo"},  # the commands and what they show
]
BESIDE = {"testing": {"errors", "stats", "vocab", "engine"}}
WITHOUT_MODELS = {"scheduler.py", "sequence.py", "paths.py", "trie.py", "stats.py"}
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def imports(source, package):
    """Every module that some code imports at any level of nesting, as a dotted name."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join([*base, *([node.module] if node.module else [])])
            found |= {name, *(f"{name}.{alias.name}" for alias in node.names)}
    return found


def of(path):
    return imports((PACKAGE / path).read_text(), ("jumpforward", *path.parts[:-1]))


def part(name):
    """The first name below the package: ``jumpforward.grammar.spec`` is in ``grammar``."""
    return name.split(".")[1] if name.startswith("jumpforward.") else None


def permitted(module):
    if module in BESIDE:
        return BESIDE[module]
    level = next(index for index, layer in enumerate(LAYERS) if module in layer)
    below = set().union(*LAYERS[:level])
    return below | {module} | (LAYERS[level] if level in (0, len(LAYERS) - 2, len(LAYERS) - 1) else set())


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_point_down_the_list(path):
    module = path.parts[0].removesuffix(".py")
    if module in ("__init__", "__main__"):
        return
    known = set().union(*LAYERS) | BESIDE.keys()
    assert {part(name) for name in of(path)} & known <= permitted(module)


def test_every_file_has_its_place_in_the_list():
    modules = {path.parts[0].removesuffix(".py") for path in FILES}
    assert modules <= set().union(*LAYERS) | BESIDE.keys() | {"__init__", "__main__"}


@pytest.mark.parametrize("path", [path for path in FILES if path.name in WITHOUT_MODELS], ids=str)
def test_some_files_know_neither_torch_nor_transformers(path):
    assert not {name.split(".")[0] for name in of(path)} & {"torch", "transformers"}


def test_the_reader_of_imports_sees_every_form():
    source = "import a.b\nfrom c import d\ndef f():\n    from . import e\n    from ..g import h\n"
    names = {"a.b", "c", "c.d", "jumpforward.engine", "jumpforward.engine.e", "jumpforward.g", "jumpforward.g.h"}
    assert imports(source, ("jumpforward", "engine")) == names
    assert "grammar" not in permitted("vocab")
    assert "vocab" not in permitted("grammar")
    assert "engine" not in permitted("matching")


def loaded_after(code):
    script = f"import sys\n{code}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_neither_torch_nor_transformers():
    heavy = {"torch", "transformers", "xgrammar", "tokenizers"}
    assert not loaded_after("import jumpforward") & heavy
    assert heavy <= loaded_after("import jumpforward; jumpforward.Engine")  # the names would be seen


def test_the_public_names_are_there_and_others_are_not():
    assert sorted(jf.__all__) == jf.__all__
    assert all(getattr(jf, name).__name__.removeprefix("jumpforward.") == name for name in jf.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = jf.no_such_name
