# make demo | test | lint, on a machine that has Python 3.11 or newer and nothing else. All goes into .venv; `make clean` takes it away.
#   PYTHON=python3.12       another Python
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu   torch without CUDA (200 MB instead of gigabytes on Linux)
#   DEMO="--seed 1"         options of the demo
#   TESTS="tests/models -k slicing"                    some tests only

PYTHON ?= python3
TORCH_INDEX ?=
DEMO ?=
TESTS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: clean demo help lint test
.DEFAULT_GOAL := help

help:
	@echo "make demo    a coordinator and agents of different sizes on this machine, from start to exported networks"
	@echo "make test    all tests (TESTS=\"tests/models -k slicing\": some)"
	@echo "make lint    ruff, mypy and bandit"
	@echo "make clean   remove .venv and caches"

demo: $(VENV)/installed
	@$(BIN)/coordinator demo $(DEMO)

# Side by side, one more than there are processors, since some only wait; then, one by one, what starts brokers and processes or measures this machine.
test: $(VENV)/installed-dev
ifeq ($(strip $(TESTS)),)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --dist worksteal -m "beside or not (broker or processes or timed)"
	$(BIN)/python -m pytest -m "(broker or processes or timed) and not (beside or slow)"
else
	$(BIN)/python -m pytest $(TESTS)
endif

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml models federated export coordinator edge_agent benchmarks

clean:
	rm -rf $(VENV) $(VENV)-base .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info build

# A stamp is touched only when all of its recipe went well, so a broken download is tried again.
$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is %d.%d: make PYTHON=..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/installed: $(VENV)/created pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "$$(grep '^torch==' constraints.txt)"
	$(PIP) install -c constraints.txt -e ".[coordinator,export]"
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) install -c constraints.txt -e ".[dev]"
	touch $@
