SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

export MLFLOW_DISABLE_TELEMETRY := true
# Many containers set it. Every process of the tests and stages would then compile all sources again.
unexport PYTHONDONTWRITEBYTECODE

# The first of these that runs and is 3.11 or 3.12 (a version manager's stand-in may exist and still refuse to run).
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(shell for python in python3.11 python3.12 python3; do \
	if $$python -c "$(SUPPORTED)" 2>/dev/null; then echo $$python; break; fi; done)
# What `make run` needs, and what tests and checks need beside it.
RUN_SETUP := .venv/.pipeline
SETUP := .venv/.dev
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# uv takes a quarter of pip's time. Where it cannot be had, or has no answer, pip does the same.
UV := test -x .venv/bin/uv && .venv/bin/uv pip install --quiet --python .venv/bin/python -c constraints.txt

.PHONY: help setup run test guarantee rest bench docs lint types imports audit ui clean

help: ## print this list
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 16

setup: $(SETUP) ## install the project and its tools into .venv

# PyTorch comes first: uv chooses the build for this machine's GPU, or for none; pip's usual one brings CUDA. The stamp
# is touched last, so an interrupted set-up is done again.
define install
@rm -f $@
@"$(PYTHON)" -c "$(SUPPORTED)" 2>/dev/null || { \
	echo "error: PYTHON: found '$(PYTHON)', which is not a Python 3.11 or 3.12 that runs;" \
		"install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
@.venv/bin/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear .venv
@echo "installing .[$(1)] into .venv"
@$(PIP) --retries 0 uv 2>/dev/null || echo "uv cannot be had: pip installs, which takes longer" >&2
@export UV_HTTP_RETRIES=0; $(UV) --torch-backend auto torch 2>/dev/null || $(PIP) torch
@$(UV) -e ".[$(1)]" || $(PIP) -e ".[$(1)]"
@touch $@
endef

$(RUN_SETUP): pyproject.toml constraints.txt
	$(call install,pipeline)

$(SETUP): pyproject.toml constraints.txt
	$(call install,dev)
	@touch $(RUN_SETUP)

run: $(RUN_SETUP) ## run the stages whose inputs changed, then print the results
	@PATH="$(CURDIR)/.venv/bin:$$PATH" primorl run

# Many tests wait for a disk or a process, so three share two cores. tests/conftest.py says which modules begin.
PYTEST := OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder
GUARANTEE := tests/hostile tests/replay tests/privacy

test: $(SETUP) ## run the test suite
	$(PYTEST)

guarantee: $(SETUP) ## run the tests of the guarantee: mechanism, ledger, neighbouring data, programs that attack
	$(PYTEST) $(GUARANTEE)

rest: $(SETUP) ## run the other tests
	$(PYTEST) $(addprefix --ignore=,$(GUARANTEE))

bench: $(SETUP) ## run the speed benchmarks and write the tables of benchmarks/performance.md
	.venv/bin/python -m benchmarks.speed

docs: $(SETUP) ## build the documentation into site/; fails on a broken link, and on a page that fetches anything
	.venv/bin/python -m docs.tools.site
	.venv/bin/zensical build --clean --strict
	@! grep -rlE '<(script|link|img)[^>]+(src|href)="?(https?:)?//' site --include='*.html'

lint: $(SETUP) ## check style and formatting
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: $(SETUP) ## check static types
	.venv/bin/mypy

imports: $(SETUP) ## check which package may import which
	.venv/bin/lint-imports

audit: $(SETUP) ## check the pinned dependencies for known vulnerabilities
	.venv/bin/pip-audit --no-deps --disable-pip --requirement constraints.txt

ui: $(RUN_SETUP) ## show MLflow on http://127.0.0.1:5000
	@store="$$(.venv/bin/python -c \
		'from primorl.config import params; from primorl import tracking; print(tracking.store_uri(params.load()))')"; \
	MLFLOW_BACKEND_STORE_URI="$$store" MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false \
		.venv/bin/mlflow ui --host 127.0.0.1 --workers 1

clean: ## remove .venv and caches; keep data, models, results and the MLflow store
	rm -rf .venv build site .cache *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find primorl pipeline tests -name __pycache__ -prune -exec rm -rf {} +
