# Two commands: `make run` shows Whimbrel at work, `make test` proves it. Each sets up what it needs in .venv.

.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SPARK_STAMP := $(VENV)/.installed-spark
CLASSES_STAMP := $(VENV)/.spark-classes
DEV_STAMP := $(VENV)/.installed-dev
# What is never imported need not be compiled, and that is most of Spark.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# Everything this machine runs in tests; the extra console joins when its room is built.
DEV_EXTRAS := connect,spark,lab,images,radio,bench,docs,dev
# Tests side by side. One worker has the Spark session; two others keep busy what it leaves of two cores.
WORKERS ?= 3
# Where Python may not keep what it compiled (many images say so), each of hundreds of processes would compile it anew.
unexport PYTHONDONTWRITEBYTECODE
FAST := tests/unit tests/property tests/contract tests/differential

# What the checker of our English reads, and how many hits of each kind each package may have.
PROSE := src docs README.md --baseline tools/plain_english.json

.PHONY: help run test lint check bench docs java clean

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

run: $(SPARK_STAMP) $(CLASSES_STAMP) ## Set up, then show Whimbrel at work: a broker, forty devices, the pipeline (some minutes)
	@source tools/java_home.sh && $(BIN)/whimbrel demo $(ARGS)

test: $(DEV_STAMP) $(CLASSES_STAMP) ## Set up, then run all tests
	@source tools/java_home.sh && TIMEFORMAT='core seconds: %U by programs, %S by the system; %R s went by' && \
	  time $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder $(ARGS)

lint: $(DEV_STAMP) ## Format, lint, strict types, plain English, generated pages, changelog fragments
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/plain_english.py $(PROSE) --by 3
	$(BIN)/python tools/make_docs.py --check
	$(BIN)/python tools/changelog.py --check

check: lint ## All of lint, and the fast tests
	$(BIN)/python -m pytest $(FAST) -m "not slow" $(ARGS)

bench: $(DEV_STAMP) ## Measure beside our peers, print ratios, keep results in bench/results
	$(BIN)/python bench/run.py $(ARGS)

docs: $(DEV_STAMP) ## Make the generated reference pages anew, and the site in site/; fails at a broken link
	$(BIN)/python tools/make_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

java: ## Find Java 17 or newer for Spark, or install it where that is possible
	@bash tools/find_java.sh

clean: ## Remove everything that was made here
	rm -rf $(VENV) .java dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Whimbrel needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	    "Name another with: make PYTHON=/path/to/python3.11 …"; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version) …"
	@$(PYTHON) -m venv $(VENV)

$(SPARK_STAMP): $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing Whimbrel and Spark into $(VENV) (Spark is large: a few minutes the first time) …"
	@$(PIP) --editable '.[spark]'
	@$(BIN)/whimbrel warm-up
	@touch $@

# With the Java that was found or installed, which may be on no path.
$(CLASSES_STAMP): pyproject.toml constraints.txt | java
	@source tools/java_home.sh && $(BIN)/whimbrel warm-up
	@touch $@

$(DEV_STAMP): $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing Whimbrel, Spark, peers and tools into $(VENV) (Spark is large: a few minutes the first time) …"
	@$(PIP) --editable '.[$(DEV_EXTRAS)]'
	@$(BIN)/whimbrel warm-up
	@touch $(SPARK_STAMP) $@
