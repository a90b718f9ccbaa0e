# Every target makes its own set-up: a Python of 3.11 or newer and make are all that must exist.
# `make PYTHON=python3.12 ...` chooses the Python.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin

# One cache of compiled kernels for all processes, inside what `make clean` removes.
export NUMBA_CACHE_DIR := $(CURDIR)/$(VENV)/numba
PYTEST := $(BIN)/python -m pytest
# The kernels are compiled before, so that workers do not each compile them.
WORKERS ?= 2
# How often a test with real servers may fail before it counts; what failed is printed all the same.
RERUNS ?= 0
FAST := tests --ignore=tests/integration --ignore=tests/spark --ignore=tests/conformance

.PHONY: help demo test check lint types unit warm helm integration spark bench fmt clean
.DEFAULT_GOAL := help

help: ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

demo: $(READY) ## a real broker, keylane and eight consumers in the terminal
	@$(BIN)/keylane demo

test: ## all checks, then the tests with a real Kafka and a real Spark
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory integration
	@$(MAKE) --no-print-directory spark

check: ## lint, types, unit and property tests: under three minutes
	@$(MAKE) --no-print-directory lint types unit

lint: $(READY)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/lint-imports --no-cache

types: $(READY)
	$(BIN)/mypy

warm: $(READY)
	@$(BIN)/python -c 'from keylane.kernel.warmup import warm_up; warm_up()'

unit: warm helm
	$(PYTEST) $(FAST) -n $(WORKERS) --quiet --durations=5

helm: $(READY)
	@$(BIN)/python -m tools.helm

integration: warm ## the tests with a real Kafka (started by themselves)
	$(PYTEST) tests/integration -n $(WORKERS) --dist loadfile --quiet --durations=10 --reruns $(RERUNS)

spark: warm ## the tests with a real Spark (and a Kafka of their own)
	$(PYTEST) tests/spark --quiet --durations=10 --reruns $(RERUNS)

bench: warm ## the small benchmarks; prints one line each
	@$(BIN)/python tools/bench.py

bench-peers: warm ## keylane beside direct Kafka and its peers, 12 minutes; writes docs/performance.md
	@$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@$(BIN)/python -m bench.side_by_side

fmt: $(READY) ## format, and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the environment, caches and build output
	rm -rf $(VENV) $(VENV).lock build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(READY): pyproject.toml tools/set_up.py
	@test -n "$(PYTHON)" || { echo "keylane needs Python 3.11 or newer on PATH" >&2; exit 1; }
	@$(PYTHON) tools/set_up.py $(VENV) $(READY)
