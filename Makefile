# FairServe: `make demo` shows it, `make test` tests it. Each sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo serve test check clean
help:
	@echo "make demo   run three agent apps against fcfs, rpm and fairserve, and compare (under 5 minutes)"
	@echo "make serve  run the platform on http://127.0.0.1:8000 with two embedded workers"
	@echo "make test   run all tests"
	@echo "make check  lint, types and layering"
	@echo "make clean  remove .venv and caches"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "FairServe needs Python 3.11 or later; say PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[server,torch,json,postgres,redis,demo,bench,dev]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/fairserve demo

serve: $(STAMP)
	$(BIN)/fairserve serve

test: $(STAMP)
	$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_layering.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
