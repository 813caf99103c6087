# Everything a newcomer or a CI machine needs; each target installs what it misses.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# One set of threads per process: on small machines spinning thread pools fight each other.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo papers-mini test lint dashboard install clean

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

install: $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/tiercache run sweeps/demo.yaml

# The small forms of all sweeps of the papers, then docs/results; what reports/papers-mini.db has isn't run again.
papers-mini: $(INSTALLED)
	$(BIN)/tiercache papers

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

dashboard: $(INSTALLED)
	$(BIN)/tiercache dashboard

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
