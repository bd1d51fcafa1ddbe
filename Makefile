# FairServe: `make demo` shows it, `make test` tests it. Each sets up .venv by itself. `make test-vllm`
# sets up .venv-vllm (a CPU build of vLLM that runs: its torch must come from an index that has torch's
# CPU builds, see PIP_EXTRA_INDEX_URL), and in it, when needed, a newer release, of which the scheduler runs.
PYTHON ?= python3
# Empty: Python caches compiled modules. Tests start dozens of processes that would compile them again.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
BIN := $(VENV)/bin
# What `make demo` and `make serve` need, and what tests and checks need as well.
PRODUCT := server,torch,json,demo
TOOLS := postgres,redis,oidc,otel,mcp,picker,kubernetes,s3,agents,bench,reports,dev
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.product
COMMA := ,
UV := uv==0.13.9

# `make test TEST_PROCESSES=0` runs all tests in one process, to debug one of them.
TEST_PROCESSES ?= 2

VLLM := .venv-vllm
VLLM_SECOND := 0.33.0
VLLM_SECOND_HOME := $(VLLM)/releases/$(VLLM_SECOND)

.PHONY: help setup demo serve test test-deep test-faults test-vllm test-vllm-second test-clients litellm check architecture protocol lock clean
help:
	@echo "make demo   run agents against fcfs, rpm, cache-aware and fairserve, and compare (about 3 minutes)"
	@echo "make serve  run the platform on http://127.0.0.1:8000 with two embedded workers"
	@echo "make test   run all tests but the deep ones"
	@echo "make test-deep  run long simulations and benchmarks, every property with many examples, and mutations"
	@echo "make test-faults  kill, suspend and cut off servers that share an order, workers and stores under traffic (2 minutes)"
	@echo "make check  lint, types, layering, and whether reports are as new as the code"
	@echo "make architecture  draw the imports of the rooms anew in docs/architecture.md"
	@echo "make lock   write requirements.lock anew, after a change of constraints.txt"
	@echo "make protocol   generate the message classes of the picker's protocol"
	@echo "make test-vllm  run the tests of the vLLM plug-in beside vLLM 0.32, and 0.33 if they changed (2 GB)"
	@echo "make test-clients  run agent frameworks and load tools against the server; write docs/guide/clients.md (5 GB)"
	@echo "make litellm   set up .venv-litellm, for \`fairserve bench gateway --litellm .venv-litellm\` (1 GB)"
	@echo "make clean  remove the environments and caches"

# uv installs the versions and checks the hashes of requirements.lock; where it cannot be installed, pip
# takes the same versions from constraints.txt. uv reads no settings of pip: it gets its folders of wheels,
# and the indexes that the environment names.
define install
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "FairServe needs Python 3.11 or later; say PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install -q $(UV) || echo "uv is not to be had: pip installs, which takes longer"
	@if test -x $(BIN)/uv; then \
		folders=$$($(BIN)/python -m pip config list | sed -n "s/^.*\.find-links='\(.*\)'$$/\1/p" | tail -1 | tr ' ' ,); \
		UV_FIND_LINKS="$${UV_FIND_LINKS-$$folders}" UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX-$$PIP_INDEX_URL}" \
		UV_INDEX="$${UV_INDEX-$$PIP_EXTRA_INDEX_URL}" UV_INDEX_STRATEGY=unsafe-best-match \
		$(BIN)/uv pip install -q --python $(BIN)/python -c requirements.lock -e '.[$(1)]'; \
	else \
		$(BIN)/python -m pip install -q -c constraints.txt -e '.[$(1)]'; \
	fi
	@touch $@
endef

setup: $(STAMP)

$(DEMO_STAMP): pyproject.toml constraints.txt requirements.lock
	$(call install,$(PRODUCT))

$(STAMP): pyproject.toml constraints.txt requirements.lock
	$(call install,$(PRODUCT)$(COMMA)$(TOOLS))

# The lock has constraints.txt's versions with their hashes. torch has none: its builds depend on the machine.
lock: $(STAMP)
	UV_FIND_LINKS="$${UV_FIND_LINKS-$$PIP_FIND_LINKS}" $(BIN)/uv pip compile -q --universal --python-version 3.11 \
		$(addprefix --extra ,$(subst $(COMMA), ,$(PRODUCT)$(COMMA)$(TOOLS)$(COMMA)gpu)) \
		--generate-hashes --no-annotate --no-header -c constraints.txt pyproject.toml \
		| $(BIN)/python tests/support/lock.py > requirements.lock

demo: $(DEMO_STAMP)
	$(BIN)/fairserve demo

serve: $(DEMO_STAMP)
	$(BIN)/fairserve serve --model demo

test: $(STAMP)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

# A failure prints the line that repeats it; the failing example becomes a test of its own. Of 1 % of
# all mutations the tests must find three quarters; tests/mutations/report.md has the latest figures.
test-deep: $(STAMP)
	$(BIN)/python -m pytest --deep -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
	$(BIN)/python tests/mutations/run.py --least 75

# `make test-faults MINUTES=30 SEED=7`: a longer one, and another order of the faults.
MINUTES ?= 2
SEED ?= 1

test-faults: $(STAMP)
	$(BIN)/python tests/faults/run.py --minutes $(MINUTES) --seed $(SEED)

# The file names all versions, so nothing is resolved. Only what servers import is compiled, a quarter of it all,
# and here: their six processes start together, and each would compile all of it.
$(VLLM)/.installed: pyproject.toml constraints-vllm.txt
	@test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install -q --no-deps --no-compile -r constraints-vllm.txt
	$(VLLM)/bin/python -m pip install -q --no-deps -e .
	@VLLM_LOGGING_LEVEL=ERROR $(VLLM)/bin/python -c \
		'import fairserve.platform.server.app, vllm.entrypoints.openai.api_server, vllm.v1.worker.cpu_worker'
	@touch $@

# In a folder of its own, and with the first release's dependencies: its own are gigabytes for CUDA.
$(VLLM_SECOND_HOME)/.installed: | $(VLLM)/.installed
	$(VLLM)/bin/python -m pip install -q --no-deps --no-compile --upgrade --target $(@D) vllm==$(VLLM_SECOND)
	@touch $@

# The fingerprint is taken before the tests, so that it is that of what they ran.
test-vllm: $(VLLM)/.installed
	@$(VLLM)/bin/python tests/vllm/fingerprint.py take $(VLLM)/fingerprint.json $(VLLM_SECOND)
	$(VLLM)/bin/python -m pytest tests/vllm
	@$(VLLM)/bin/python tests/vllm/fingerprint.py compare $(VLLM)/fingerprint.json || $(MAKE) test-vllm-second
	@cp $(VLLM)/fingerprint.json tests/vllm/fingerprint.json

test-vllm-second: $(VLLM_SECOND_HOME)/.installed
	PYTHONPATH=$(CURDIR)/$(VLLM_SECOND_HOME) EXPECTED_VLLM=$(VLLM_SECOND) \
		$(VLLM)/bin/python -m pytest tests/vllm --ignore tests/vllm/engine

# Each framework and tool in an environment of its own, with all its versions; nothing is resolved.
# inference-perf asks for Python 3.12 and runs with 3.11.
CLIENTS := .venv-clients
CLIENT_ENVIRONMENTS := $(patsubst tests/clients/environments/%.txt,$(CLIENTS)/%/.installed,$(wildcard tests/clients/environments/*.txt))

$(CLIENTS)/%/.installed: tests/clients/environments/%.txt
	$(PYTHON) -m venv $(CLIENTS)/$*
	$(CLIENTS)/$*/bin/python -m pip install -q --no-deps --no-compile --ignore-requires-python -r $<
	@touch $@

test-clients: $(STAMP) $(CLIENT_ENVIRONMENTS) $(VLLM)/.installed
	@ln -sfn ../$(VLLM) $(CLIENTS)/vllm
	$(BIN)/python tests/clients/run.py $(CLIENTS)

# The file names all versions, so nothing is resolved.
LITELLM := .venv-litellm

litellm: $(LITELLM)/.installed

$(LITELLM)/.installed: benchmarks/bench/gateway/litellm.txt
	@test -x $(LITELLM)/bin/python || $(PYTHON) -m venv $(LITELLM)
	$(LITELLM)/bin/python -m pip install -q --no-deps -r $<
	@touch $@

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/plain_english.py
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python -m pytest -q tests/unit/test_layering.py tests/unit/test_architecture.py
	$(BIN)/fairserve reproduce status

# The drawing is made from the imports; a test of `make check` fails when it is stale.
architecture: $(STAMP)
	$(BIN)/python tests/support/architecture.py

# Message classes of the picker's protocol; a test fails when they are stale.
protocol: $(STAMP)
	cd platform/picker/protocol && $(CURDIR)/$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. messages.proto

clean:
	rm -rf $(VENV) $(VLLM) $(LITELLM) $(CLIENTS) .pytest_cache .mypy_cache .ruff_cache .hypothesis
