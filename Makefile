# Targets: demo, docs, test, test-all, lint, web. They need only Python 3.11 or newer and install everything into
# .venv, which `make clean` removes.
#   PYTHON=python3.12                   use another Python
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu
#                                       torch without CUDA (200 MB instead of gigabytes on Linux)
#   DEMO="--seed 1"                     options of the demo
#   TESTS="tests/models -k slicing"     run only these tests

PYTHON ?= python3
TORCH_INDEX ?=
DEMO ?=
TESTS ?=
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := models federated export coordinator edge_agent espalier
PIP := $(BIN)/python -m pip --disable-pip-version-check

# The bytecode of the tests, and of the programs that they start, is compiled once, not by each process.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: clean demo docs help lint test test-all web
.DEFAULT_GOAL := help

help:
	@echo "make demo      Train with a coordinator and four unequal agents on this machine, and export the networks"
	@echo "make test      Run all tests except the slow ones (TESTS=\"tests/models -k slicing\": only these)"
	@echo "make test-all  Run all tests"
	@echo "make lint      Run ruff, mypy and bandit"
	@echo "make docs      Build the documentation site in build/docs"
	@echo "make web       Build the web page and install it in .venv; needs Node 20 or newer"
	@echo "make clean     Remove .venv and caches"

demo: $(VENV)/installed
	@$(BIN)/coordinator demo $(DEMO)

# Most tests run in parallel, with one more worker than processors, because some tests mostly wait; most slow tests do,
# so they have four more. After the tests that are not slow, those that measure time run one at a time.
PROCESSORS := $$(getconf _NPROCESSORS_ONLN)
SIDE_BY_SIDE := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal

# The files with slow tests, and those with tests that measure time: importing all others takes as long as many tests.
SLOW := $$(grep -rl --include='test_*.py' 'mark\.slow' tests)
TIMED := $$(grep -rl --include='test_*.py' 'mark\.timed' tests)

test: $(VENV)/installed-dev
ifeq ($(strip $(TESTS)),)
	$(SIDE_BY_SIDE) -n $$(($(PROCESSORS) + 1)) -m "not slow and not timed"
	$(BIN)/python -m pytest -m timed $(TIMED)
else
	$(BIN)/python -m pytest $(TESTS)
endif

test-all: test
	$(SIDE_BY_SIDE) -n $$(($(PROCESSORS) + 4)) -m slow $(SLOW)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml $(PACKAGES) benchmarks

docs: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks docs --check
	PATH="$(CURDIR)/$(BIN):$$PATH" sphinx-build -nW --keep-going -q docs build/docs
	@echo "open build/docs/index.html"

web: $(VENV)/installed-dev
	cd coordinator/web/page && npm ci --no-audit --no-fund && npm run check && npm test && npm run build
	$(PIP) install -c constraints.txt -e coordinator/web/page playwright

clean:
	rm -rf $(VENV) $(VENV)-base $(VENV)-tools coordinator/web/page/node_modules dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info build

# These files mark completed steps. A step that failed, such as an interrupted download, runs again.
$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "expected Python 3.11 or newer, found %d.%d: use make PYTHON=..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	touch $@

# Compiled here, because otherwise each process of the demo compiles what it imports, one of them with
# a fifth of a processor.
$(VENV)/installed: $(VENV)/created pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "$$(grep '^torch==' constraints.txt)"
	$(PIP) install -c constraints.txt -e ".[coordinator,export]"
	$(BIN)/python -m compileall -q -x node_modules $(PACKAGES)
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) install -c constraints.txt -e ".[dev]"
	touch $@
