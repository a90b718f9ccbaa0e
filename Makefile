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
# Of Python as well, even where the user wants none beside the sources: each node that a test
# starts would compile 300 modules, for a third of the time of its start.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache
# `--long` runs what is marked `long` too.
FORMS ?=
# The kernels are compiled before, so that workers do not each compile them.
WORKERS ?= 2
# Tests with brokers wait for them a third of the time. Three workers leave a sixth of two cores idle;
# a fourth takes 2 % off, and more tests come near their bounds.
BROKER_WORKERS ?= 3
FAST := tests --ignore=tests/integration --ignore=tests/page --ignore=tests/clients --ignore=tests/spark \
	--ignore=tests/conformance --ignore=tests/simulation

# Tools that write the locks, apart from what they write them for.
TOOLS := $(VENV)/tools
# `make lock` keeps what is locked and still fits; UPGRADE=1 takes the newest of everything,
# PACKAGE=name of one package.
COMPILE := $(TOOLS)/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command 'make lock' \
	$(if $(UPGRADE),--upgrade) $(if $(PACKAGE),--upgrade-package $(PACKAGE))

.PHONY: help demo test long check lint types unit warm helm simulation integration clients spark
.PHONY: bench fmt clean
.PHONY: docs bench-peers lock lock-jars sbom audit base-digest image package release-check home
.DEFAULT_GOAL := help

help: ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

demo: $(READY) ## a real broker, keylane and eight consumers in the terminal
	@$(BIN)/keylane demo

test: ## all checks, the simulation, then the tests with a real Kafka, clients of Go and JavaScript, Spark
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory simulation
	@$(MAKE) --no-print-directory integration
	@$(MAKE) --no-print-directory clients
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
	@$(BIN)/python -m tools.go_tools

long: ## `make test` with all forms of its tests, and a thousand schedules: an hour and more
	@$(MAKE) --no-print-directory test FORMS=--long

simulation: warm ## whole nodes with faults in virtual time, 90 schedules
	$(PYTEST) tests/simulation $(FORMS) -n $(WORKERS) --quiet --durations=3

integration: warm ## the tests with a real Kafka (started by themselves), and with a browser
	$(PYTEST) tests/integration tests/page $(FORMS) -n $(BROKER_WORKERS) --dist loadfile --no-loadscope-reorder --quiet \
		--durations=40

clients: warm ## stock clients of Go and JavaScript on lanes: built once, left out without go or node
	@$(BIN)/python -m tests.clients.builds $(FORMS)
	$(PYTEST) tests/clients $(FORMS) -n $(WORKERS) --quiet --durations=10

spark: warm ## the tests with a real Spark (and a Kafka of their own)
	$(PYTEST) tests/spark --quiet --durations=10

bench: warm ## the small benchmarks; prints one line each
	@$(BIN)/python tools/bench.py

bench-peers: warm ## keylane beside direct Kafka and its peers, 12 minutes; writes docs/performance.md
	@$(BIN)/python -m bench.side_by_side

docs: $(READY) ## the documentation as a site in build/docs; a broken link fails
	@$(BIN)/python -m tools.doc_site build/docs

fmt: $(READY) ## format, and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(TOOLS)/.ready ## renew the locks of Python packages in requirements/
	$(COMPILE) requirements/build.in -o requirements/lock-build.txt
	$(COMPILE) requirements/tools.in -o requirements/lock-tools.txt
	$(COMPILE) pyproject.toml -o requirements/lock-image.txt
	$(COMPILE) pyproject.toml --extra test --extra bench -c requirements/lock-image.txt \
		-o requirements/lock-test.txt
	@$(MAKE) --no-print-directory sbom

lock-jars: $(READY) ## renew the locks of the jars of Kafka and of Spark's connector
	@$(BIN)/python -m tools.lock_jars
	@$(MAKE) --no-print-directory sbom

sbom: $(READY) ## NOTICE and the lists of parts (CycloneDX), from the locks
	@$(BIN)/python -m tools.sbom

audit: $(TOOLS)/.ready ## known vulnerabilities of the locked Python packages; asks PyPI, or AUDIT='-s osv'
	$(TOOLS)/bin/pip-audit --strict --require-hashes --disable-pip --progress-spinner off $(AUDIT) \
		-r requirements/lock-image.txt

package: $(TOOLS)/.ready ## wheel and sdist into dist/, checked as a package index does
	@rm -rf dist && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
		$(TOOLS)/bin/python -m build --no-isolation --outdir dist .
	$(TOOLS)/bin/twine check --strict dist/*

release-check: $(READY) package ## is this commit a release? Packages, tag, version, changelog, chart, addresses
	@helm=$$($(BIN)/python -m tools.go_tools) && test -n "$$helm" \
		&& "$$helm" package helm/keylane --destination dist
	@$(BIN)/python -m tools.gen_docs --check && $(BIN)/python -m tools.gen_chart --check
	@$(BIN)/python -m tools.release

home: $(READY) ## set the project's addresses everywhere: HOME_URL=https://... SOURCE_URL=https://...
	@$(BIN)/python -m tools.release home "$(HOME_URL)" "$(SOURCE_URL)"

base-digest: ## base of the image: write requirements/base-image.txt, with its digest
	@tools/base_digest.sh

image: ## build the image with Docker, on the base of requirements/base-image.txt
	@test -s requirements/base-image.txt || { echo "requirements/base-image.txt is missing:" \
		"\`make base-digest\` writes it, where a registry of images can be reached" >&2; exit 1; }
	docker build --build-arg PYTHON_IMAGE="$$(cat requirements/base-image.txt)" -t keylane .

clean: ## remove the environment, caches and build output
	rm -rf $(VENV) $(VENV).lock build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(TOOLS)/.ready: requirements/lock-tools.txt tools/set_up.py
	@$(PYTHON) tools/set_up.py $(TOOLS) $(TOOLS)/.ready requirements/lock-tools.txt

$(READY): pyproject.toml tools/set_up.py requirements/lock-build.txt requirements/lock-test.txt
	@test -n "$(PYTHON)" || { echo "keylane needs Python 3.11 or newer on PATH" >&2; exit 1; }
	@$(PYTHON) tools/set_up.py $(VENV) $(READY)
