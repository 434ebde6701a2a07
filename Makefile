# make demo   sets up and measures the bundled model on the bundled images
# make test   sets up and runs every test
# make fuzz   tries FUZZ times as many odd inputs as `make test` does, others every time
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow fuzz check bench docs clean

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)

help:
	@sed -n 's/^# make/make/p' Makefile
	@echo "also:       setup  test-slow  check  bench  docs  clean"

setup: $(VENV)/.ready

#  PIP_FIND_LINKS is emptied so that torch and torchvision come from one place and fit together.
ifdef UV
INSTALL := $(UV) pip install --quiet --compile-bytecode --python $(BIN)/python --editable
else
INSTALL := PIP_FIND_LINKS= $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable
endif

$(VENV)/.ready: pyproject.toml
ifdef UV
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)
else
	$(PYTHON) -m venv $(VENV)
endif
	$(INSTALL) '.[dev]'
	@touch $@

#  Packages that only the slow tests need.
$(VENV)/.peers: $(VENV)/.ready
	$(INSTALL) '.[dev,peers]'
	@touch $@

demo: setup
	$(BIN)/faithscope demo

#  The tests on Ray share one cluster, whose workers need both cores for themselves.
test: setup
	$(BIN)/python -m pytest -n 2 --ignore=tests/cluster
	$(BIN)/python -m pytest tests/cluster

test-slow: $(VENV)/.peers
	$(BIN)/python -m pytest -m slow

FUZZ ?= 20
fuzz: setup
	FAITHSCOPE_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/fuzz

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: setup
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/explain.py

docs: setup
	$(BIN)/python docs/reproduction.py
	$(BIN)/python docs/notebook.py
	$(BIN)/python docs/build.py

clean:
	rm -rf $(VENV) faithscope-demo faithscope-demo-text .pytest_cache .mypy_cache .ruff_cache .hypothesis
