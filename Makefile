# Every task of development. `make` alone lists the targets.
#
# A target that needs `.venv` makes it first if the lock has changed. Each target ends on its own, asks no
# questions and leaves no process behind, so it runs the same in a terminal, from cron and in CI.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup run test check lint format proof bench docs lock clean

# The interpreter that `.venv` is made from; 3.11 or newer. Override: make setup PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.made-from-lock

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(STAMP)  ## make .venv from the lock (once; again when the lock changes)

$(STAMP): requirements-dev.lock
	@$(PYTHON) tools/prerequisites.py
	$(PYTHON) -m venv $(VENV)
	@$(PYTHON) tools/install.py $(PY) requirements-dev.lock
	@touch $(STAMP)

run: $(STAMP)  ## run the main application here: simulated web servers, Kafka, Spark, attackers found, a report
	$(VENV)/bin/penstock accesslog demo

lint: $(STAMP)  ## run ruff, mypy, the import rules and the search for dead code
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/vulture
	$(VENV)/bin/vulture src examples tools  # what only tests call is dead, too

check: $(STAMP)  ## run lint and every test that needs no server (about 3.5 minutes; the aim is 2)
	$(PY) tools/run_tests.py --lint --no-servers -- -q </dev/null

test: $(STAMP)  ## run lint and everything but the proofs, with strict accounting (21 to 23 minutes; the aim is 20)
	$(PY) tools/run_tests.py --lint </dev/null

proof: $(STAMP)  ## run the long proofs (hours) and write what was proven to docs/proof/
	$(PY) tools/proof.py </dev/null

bench: $(STAMP)  ## measure against Spark's JVM connector; print machine, versions, samples, ratio
	$(PY) -m bench </dev/null

docs: $(STAMP)  ## regenerate the reference pages from the tests and the sources
	$(PY) tools/reference.py

format: $(STAMP)  ## let ruff format and fix what it can
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

lock:  ## pin all dependencies again (needs uv)
	sh tools/lock.sh

clean:  ## remove caches and build leftovers, keep .venv
	rm -rf build dist artifacts spark-warehouse metastore_db derby.log .coverage \
	  .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
