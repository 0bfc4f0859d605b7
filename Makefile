# `make demo` and `make test` need Linux, Python 3.11 and make; everything else lands in .venv, once.
PYTHON ?= python3.11
VENV ?= .venv
PYTEST_ARGS ?=
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-full lint clean

help: ## these lines
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

install: $(STAMP) ## create .venv and install Elasmo with the tested versions

$(STAMP): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Elasmo into $(VENV): a few minutes, once."
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e ".[demo,dev]"
	touch $@

demo: $(STAMP) ## the whole loop on this machine: ingest, train through a node loss, publish, serve, ask
	$(VENV)/bin/elasmo demo

test: $(STAMP) ## the tests, but for the slow ones
	$(VENV)/bin/python -m pytest -m "not full" --durations=15 $(PYTEST_ARGS)

test-full: $(STAMP) ## every test
	$(VENV)/bin/python -m pytest --durations=25 $(PYTEST_ARGS)

lint: $(STAMP) ## format, lint and types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

clean: ## remove .venv and caches; runs/ is kept
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# One thread a process: the tests run many processes on few cores, and sums keep one order.
test test-full: export OMP_NUM_THREADS ?= 1
test test-full: export RAY_USAGE_STATS_ENABLED ?= 0
