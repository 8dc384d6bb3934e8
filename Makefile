# Every target works on a fresh clone: `make setup` is implied and done once.
#
# On a machine where plain `pip install torch` brings a CUDA build of several gigabytes:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu

# The first interpreter that runs and is new enough; `make PYTHON=...` overrides it.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.10 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# One thread each: the workers share the cores, and a sum's order does not depend on their number.
TEST_ENV := OMP_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format types unit check-wheel bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv and install everything into it, once

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "gradwatch needs Python 3.10 or newer (make PYTHON=/path/to/python3)"; exit 1; }
	@echo "== setting up $(VENV) with $$($(PYTHON) --version): a few minutes, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY) ## train on real images with GradWatch, then catch a planted bug
	$(BIN)/python examples/demo.py

test: lint types unit ## everything: lint, types, tests, doctests, the wheel in a clean environment

lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY) ## mypy, strict
	$(BIN)/mypy

unit: $(READY) ## tests and doctests, the wheel's among them
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --timeout 600 --durations 10

check-wheel: $(READY) ## only the wheel: build it, install it alone, import it
	$(TEST_ENV) $(BIN)/python -m pytest --timeout 600 tests/packaging/test_wheel.py

bench: $(READY) ## measure the step time with and without GradWatch
	$(BIN)/python tests/benchmarks/overhead.py

clean: ## remove the environment and every cache
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
