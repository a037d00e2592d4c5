SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

export MLFLOW_DISABLE_TELEMETRY := true

# The first of these that runs and is 3.11 or 3.12 (a version manager's stand-in may exist and still refuse to run).
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(shell for python in python3.11 python3.12 python3; do \
	if $$python -c "$(SUPPORTED)" 2>/dev/null; then echo $$python; break; fi; done)
SETUP := .venv/.ready

.PHONY: help setup run test bench lint types imports audit ui clean

help: ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 16

setup: $(SETUP) ## install everything into .venv

# The stamp is touched last, so an interrupted set-up is done again.
$(SETUP): pyproject.toml constraints.txt
	@rm -f $@
	@"$(PYTHON)" -c "$(SUPPORTED)" 2>/dev/null || { \
		echo "error: PYTHON: found '$(PYTHON)', which is not a Python 3.11 or 3.12 that runs;" \
			"install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@.venv/bin/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

run: $(SETUP) ## run what changed of the pipeline, then print its results
	PATH="$(CURDIR)/.venv/bin:$$PATH" dvc repro
	@.venv/bin/python -m primorl.commands.summary

test: $(SETUP) ## the whole test suite
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadscope

bench: $(SETUP) ## the benchmarks of speed, their results and the tables of docs/performance.md
	.venv/bin/python -m benchmarks.speed

lint: $(SETUP) ## style
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: $(SETUP) ## static types
	.venv/bin/mypy

imports: $(SETUP) ## which room may import which
	.venv/bin/lint-imports

audit: $(SETUP) ## known vulnerabilities of the pinned dependencies
	.venv/bin/python tests/audit_dependencies.py

ui: $(SETUP) ## MLflow on http://127.0.0.1:5000
	@store="$$(.venv/bin/python -m primorl.tracking)"; \
	MLFLOW_BACKEND_STORE_URI="$$store" .venv/bin/mlflow ui --host 127.0.0.1 --workers 1

clean: ## remove .venv and caches; data, models, results and MLflow's store stay
	rm -rf .venv build *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find primorl pipeline tests -name __pycache__ -prune -exec rm -rf {} +
