# Each target makes the environments that it needs under .venv/torch-<version>/ and runs there.
# Needs Python 3.11 or newer with venv and pip; a second run reuses the environments.
#
#   make test     tests on the oldest supported torch
#   make lint     ruff and mypy
#   make matrix   tests on every supported torch (skips one that has just passed on this tree)
#   make demo     the examples
#   make bench    the benchmarks
#   make clean    removes environments and caches

PYTHON ?= python3
JOBS ?= 2
PYTEST_ARGS ?=

TORCH := 2.13.0
MATRIX := 2.13.0 2.14.1 2.15.0
ENV := .venv/torch-$(TORCH)

# Tests compile many small graphs: one thread each, and no pool of compile workers beside them.
export OMP_NUM_THREADS := 1
export TORCHINDUCTOR_COMPILE_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Figures go to files, never to a screen.
export MPLBACKEND := Agg

.PHONY: demo test lint matrix bench clean help
.DELETE_ON_ERROR:
# Without this make deletes the stamps that it made on the way.
.SECONDARY:

help:
	@sed -n '/^#   make/s/^#   //p' Makefile

# ---- environments: a stamp file says what is installed -------------------------------------------

.venv/torch-%/.torch: requirements/torch-%.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tdcompile needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv .venv/torch-$*
	.venv/torch-$*/bin/python -m pip install --quiet -r $<
	@touch $@

.venv/torch-%/.test: .venv/torch-%/.torch pyproject.toml
	.venv/torch-$*/bin/python -m pip install --quiet -e '.[test]'
	@touch $@

$(ENV)/.lint: $(ENV)/.test
	$(ENV)/bin/python -m pip install --quiet -e '.[lint]'
	@touch $@

# With the extra `bench`, since the examples show the reference package beside ours.
$(ENV)/.examples: $(ENV)/.torch pyproject.toml
	$(ENV)/bin/python -m pip install --quiet -e '.[examples,bench]'
	@touch $@

$(ENV)/.bench: $(ENV)/.torch pyproject.toml
	$(ENV)/bin/python -m pip install --quiet -e '.[bench]'
	@touch $@

# ---- targets -------------------------------------------------------------------------------------

# $(call run_tests,<version>): run, then remember the tree on which everything passed.
define run_tests
	@echo "-- tests on torch $(1)"
	@rm -f .venv/torch-$(1)/.passed
	@tree=$$(.venv/torch-$(1)/bin/python .ci/tree_hash.py) && \
	.venv/torch-$(1)/bin/python -m pytest -q -n $(JOBS) --dist worksteal $(PYTEST_ARGS) && \
	if [ -z '$(PYTEST_ARGS)' ]; then echo "$$tree" > .venv/torch-$(1)/.passed; fi
endef

test: $(ENV)/.test
	$(call run_tests,$(TORCH))

matrix: $(MATRIX:%=matrix-%)

matrix-%: .venv/torch-%/.test
	@if [ "$$(.venv/torch-$*/bin/python .ci/tree_hash.py)" = "$$(cat .venv/torch-$*/.passed 2>/dev/null)" ]; then \
		echo "-- torch $*: the tests have passed on this tree, not run again"; \
	else \
		$(MAKE) --no-print-directory run-$*; \
	fi

run-%: .venv/torch-%/.test
	$(call run_tests,$*)

lint: $(ENV)/.lint
	$(ENV)/bin/ruff check .
	$(ENV)/bin/mypy

demo: $(ENV)/.examples
	@for example in examples/*.py; do \
		echo "-- $$example"; $(ENV)/bin/python "$$example" || exit 1; \
	done

bench: $(ENV)/.bench
	$(ENV)/bin/python benchmarks/run.py

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
