# make setup makes .venv from the pins; everything else runs in it. PYTHON picks the interpreter, ARGS is passed on:
#   make test ARGS="-k pooling"     make setup PYTHON=python3.12

VENV := .venv
PINS := requirements/cpu.txt
ARGS ?=

# The environment's own interpreter comes first, so that it is kept once made.
CANDIDATES := $(VENV)/bin/python python3 python3.12 python3.11 python
ifndef PYTHON
PYTHON := $(shell for python in $(CANDIDATES); do \
	if "$$python" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; \
	then echo "$$python"; break; fi; done)
endif
VERSION := $(shell "$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
STAMP := $(VENV)/setup-$(VERSION).stamp

.PHONY: help setup check test lint format types pins clean
.DEFAULT_GOAL := help

help:
	@echo "make setup    make $(VENV) from $(PINS) (done by the targets below when needed)"
	@echo "make check    equivcheck check: judge the kernels that are available here"
	@echo "make test     run the tests, spread over the cores"
	@echo "make lint     ruff: rules and format"
	@echo "make format   ruff: rewrite the files"
	@echo "make types    mypy, strict"
	@echo "make pins     resolve $(PINS) anew (needs uv)"
	@echo "make clean    remove $(VENV), caches and builds (saved failures stay)"

setup: $(STAMP)

$(STAMP): $(PINS) pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "equivcheck's pins are for Python 3.11 and 3.12, and none of $(CANDIDATES) is one: install one, or name it with make setup PYTHON=/path/to/python3.12" >&2; \
		exit 1; \
	fi
	@case "$(VERSION)" in \
		3.11|3.12) ;; \
		"") echo "PYTHON=$(PYTHON) does not run: name a Python 3.11 or 3.12, as in make setup PYTHON=python3.12" >&2; exit 1;; \
		*) echo "PYTHON=$(PYTHON) is Python $(VERSION), and equivcheck's pins are for 3.11 and 3.12: name another, as in make setup PYTHON=python3.12" >&2; exit 1;; \
	esac
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "PYTHON=$(PYTHON) lacks the module venv or ensurepip: install it (Debian calls the package python3-venv), or name another Python with PYTHON=" >&2; exit 1; }
	@[ "$$($(VENV)/bin/python -c 'import pip, sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$(VERSION)" ] \
		|| "$(PYTHON)" -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check --requirement $(PINS)
	$(VENV)/bin/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

check: setup
	$(VENV)/bin/equivcheck check $(ARGS)

test: setup
	$(VENV)/bin/pytest -n auto $(ARGS)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

format: setup
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

types: setup
	$(VENV)/bin/mypy

# Resolved for the oldest Python that the pins are for. What only torch's CUDA build needs is left open: torch pins it
# itself, and a CPU build does without.
pins:
	uv pip compile pyproject.toml --extra cpu --extra dev --python-version 3.11 --upgrade --no-annotate --no-header \
		--quiet | grep -vE '^(nvidia|cuda)-' > $(PINS).new
	{ sed -n '/^#/p' $(PINS); cat $(PINS).new; } > $(PINS).all && mv $(PINS).all $(PINS) && rm $(PINS).new

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find equivcheck strategies tests -name __pycache__ -prune -exec rm -rf {} +
