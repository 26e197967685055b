# Two commands on a fresh machine: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
TOOLS := $(VENV)/.tools

.PHONY: setup demo test test-all lint bench bench-faults test-faults clean browser page docs lint-frontend

setup: $(TOOLS)

$(STAMP): pyproject.toml constraints.txt build_kernels.py $(wildcard src/stethoscope/kernels/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[all]"
	@touch $(STAMP)

# What only our own checks need: the demo does without.
$(TOOLS): $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --group dev
	@touch $(TOOLS)

demo: $(STAMP)
	$(BIN)/stethoscope demo

# What is slow and rarely breaks (compilers, several ranks, every byte of a journal) is left to `make test-all`: where CI=true, all is tested.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --durations 40 --durations-min 3
test: $(TOOLS) lint browser
	$(PYTEST) $(if $(filter true,$(CI)),,-m "not slow")

test-all: $(TOOLS) lint browser
	$(PYTEST)

# Every promise of what holds when things break, under its real fault, as a table; exits with 1 where one is broken. `make test` runs a short form.
# ROWS="--rows 5,12 --tries 3", or ROWS=--short.
ROWS ?=
test-faults: $(TOOLS)
	@$(BIN)/python -m tests.robustness $(ROWS)

# The page's tests need Chromium; where nobody asked for CI they skip without it.
browser:
	@if [ "$$CI" = "true" ] && ! command -v chromium >/dev/null; then apt-get update && apt-get install -y chromium; fi

# The pages that are made from the code: the picture in ARCHITECTURE.md, the index of codes, the events. Tests compare.
docs: $(TOOLS)
	for page in architecture codes events; do $(BIN)/python docs/make_$$page.py || exit 1; done

# The page's bundle, from frontend/ into src/stethoscope/views/web; needs node.
page: $(STAMP)
	$(BIN)/python frontend/make_types.py
	cd frontend && npm ci && npm run format && npm run check && npm run build

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python frontend/make_types.py --check
	@if [ "$$CI" = "true" ] || command -v npm >/dev/null; then $(MAKE) lint-frontend; else echo "no npm here: frontend/ is not checked"; fi

# The page's sources: formatted as prettier does, and typed. Needs npm, as CI has.
lint-frontend: frontend/node_modules/.package-lock.json
	cd frontend && npm run lint && npm run check

frontend/node_modules/.package-lock.json: frontend/package-lock.json
	cd frontend && npm ci --no-audit --no-fund
	@touch $@

bench: $(TOOLS)
	@for program in $(patsubst %.py,%,$(notdir $(wildcard benchmarks/*.py))); do \
		echo "== $$program"; $(BIN)/python -m benchmarks.$$program || exit 1; done

# Every fault and every healthy run of the catalogue, as a table: found or missed, silent or not.
# FAULTS="--unseen --seeds 2", or FAULTS=--live-equals-stored; python -m benchmarks.faults --help tells all.
FAULTS ?=
bench-faults: $(TOOLS)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults --every 1 $(FAULTS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
