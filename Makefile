# `make help` lists the targets. PYTHON names the interpreter that makes .venv; SEEDS the number of quickstart runs.
PYTHON ?= python3
SEEDS ?= 1

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
UNFINISHED := $(VENV)-unfinished
RUNS := runs/quickstart
EXTRAS := test,demo,browser,docs
PACKAGES := mmrl kernels/mmrl_kernels shapeworld/mmrl_shapeworld tools
BENCHMARKS := $(patsubst %,benchmarks/%.py,replay rewards reward_service media_cache vlm_step vlm_update turns overlap teacher full_size full_size_vlm) kernels/benchmarks/run.py

# Models and batches here are small: more threads a process only wait for each other.
export OMP_NUM_THREADS ?= 1
# Tests start hundreds of processes: without compiled files, each of them compiles the modules anew.
export PYTHONDONTWRITEBYTECODE :=
# A damaged .venv must not make pip install into the Python that it was made from.
export PIP_REQUIRE_VIRTUALENV := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: bench clean compiled counts demo docs help install lint quickstart test test-all test-browser test-gpu test-integration

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

quickstart: $(INSTALLED) ## Teach the shipped model to draw (SEEDS=3 trains seeds 0, 1 and 2)
	@set --; seed=0; while [ $$seed -lt $(SEEDS) ]; do \
		run=$(RUNS)/seed-$$seed; set -- "$$@" $$run; \
		if [ -e $$run/report.html ]; then echo "$$run is trained already; delete it to train it again"; \
		elif [ -e $$run/checkpoints/index.json ]; then $(BIN)/mmrl train --resume $$run || exit $$?; \
		else rm -rf $$run; echo "mmrl train quickstart seed=$$seed"; \
			$(BIN)/mmrl train quickstart seed=$$seed || exit $$?; fi; \
		seed=$$((seed + 1)); \
	done; \
	echo "mmrl evaluate $$*"; $(BIN)/mmrl evaluate "$$@"

compiled: $(INSTALLED)
	@$(BIN)/python -m compileall -q -j 0 $(PACKAGES)

test: compiled ## Run the tests (8 minutes on two cores)
	$(BIN)/python -m pytest

test-integration: compiled ## Run the tests that train, serve, stop and export whole models (a quarter of an hour on two cores)
	$(BIN)/python -m pytest -n4 -m "integration and not slow and not browser and not breadth"

test-all: export HYPOTHESIS_PROFILE ?= thorough
test-all: compiled ## Run every test but those in a browser: all pipelines, slow ones, more generated cases (two hours)
	$(BIN)/python -m pytest -n4 -m "not browser"

test-gpu: $(INSTALLED) ## Run what CUDA computes differently: replay, packing, kernels, reward models, resume (needs a GPU)
	@$(BIN)/python -c "import torch; raise SystemExit(None if torch.cuda.is_available() else 'make test-gpu: no CUDA device')"
	$(BIN)/python -m pytest -m "gpu and not browser" -n0 --durations=20

test-browser: $(INSTALLED) ## Walk through the app in a real browser (chromium)
	@$(BIN)/python -m pytest tests/browser -m browser -n0 || { \
		echo "Once more, what failed: on a busy machine a browser may have been too slow."; \
		$(BIN)/python -m pytest tests/browser -m browser -n0 --last-failed; }

lint: $(INSTALLED) ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.vocabulary

docs: $(INSTALLED) ## Build the documentation with its API reference into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

counts: $(INSTALLED) ## Count files, lines, cycles and words (REV=a commit counts an earlier state)
	$(BIN)/python -m tools.counts $(REV)

bench: $(INSTALLED) ## Run the benchmarks (20 minutes on a CPU; a model at its real size on a GPU)
	@for script in $(BENCHMARKS); do \
		echo "$$script"; $(BIN)/python "$$script" || exit $$?; done

demo: $(INSTALLED) ## Open the app that compares checkpoints, on the quickstart's run
	@[ -e $(RUNS)/seed-0/report.html ] || $(MAKE) quickstart SEEDS=1
	$(BIN)/mmrl demo $(RUNS)/seed-0

install: $(INSTALLED) ## Make .venv and install mmrl in it, with the locked versions

clean: ## Remove the environment and every cache (runs/ stays)
	rm -rf $(VENV) $(UNFINISHED) build dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip killed half-way can leave a package that it afterwards believes to be whole, so an environment whose installation
# began and never ended is made anew. A plain failure (no network, a bad requirement) keeps it.
define pip_install
@touch $(UNFINISHED)
@trap 'exit 130' INT TERM; \
	$(BIN)/python -m pip install -c constraints.txt -e "$(1)" || { \
	code=$$?; if [ $$code -lt 128 ]; then rm -f $(UNFINISHED); fi; exit $$code; }
@rm -f $(UNFINISHED)
endef

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "mmrl needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name another one: make PYTHON=python3.12 $(or $(MAKECMDGOALS),help)" >&2; exit 1; }
	@if [ -e $(UNFINISHED) ]; then \
		echo "Making $(VENV) anew: its installation was begun and never ended"; rm -rf $(VENV); fi
	@if [ -e $(VENV) ] && ! $(VENV)/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
		echo "$(VENV) has no working Python of 3.11 or newer. 'make clean' removes it." >&2; exit 1; fi
	@touch $(UNFINISHED)
	@if ! $(VENV)/bin/python -c 'import pip' 2>/dev/null; then \
		echo "Making $(VENV), about 5 GB"; $(PYTHON) -m venv $(VENV) || { rm -f $(UNFINISHED); exit 1; }; fi
	$(call pip_install,.[$(EXTRAS)])
	@touch $@
