# Everything a newcomer needs; each target sets up what it uses and installs nothing twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow wheel-test outputs upstream-test faults report lint format docs clean

help: ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# One pip call, so that pip chooses torch and torchvision together.
$(INSTALLED): setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs]'
	touch $@

install: $(INSTALLED) ## make .venv and install the package with its tools

demo: $(INSTALLED) ## Naive, EWC, DCO and DCO-KRON on handwritten digits: one table, in less than a minute
	$(BIN)/python -m benchmarks.commands.demo

test: $(INSTALLED) ## run the tests (the slow ones: make test-slow)
	$(BIN)/python -m pytest --cov --cov-report=term

test-slow: $(INSTALLED) ## run the slow tests; DATA_ROOT=... for those on real data
	$(BIN)/python -m pytest -m slow

upstream-test: $(INSTALLED) ## the contribution to Avalanche, tested in a copy of the installed one
	$(BIN)/python -m pytest -m slow tests/benchmarks/upstream

wheel-test: $(INSTALLED) ## build the wheel, install it into an empty environment, run tutorial and examples
	$(BIN)/python -m pytest -m slow tests/docs/test_wheel.py

outputs: $(INSTALLED) ## run the Python of README.md, docs/ and the examples, and write what it prints
	$(BIN)/python docs/run_pages.py

faults: $(INSTALLED) ## kill, fill disks, change bytes: hundreds of faults, and the table of them
	$(BIN)/python -m benchmarks faults
	$(BIN)/python -m benchmarks tables

# The runs that the pages "Which method" and "How far from the paper" are about, and nothing that was tried on the way.
REPORTED := table-1 layers-apart later-lr cifar-10 cifar-100-noisy mnist-fashion theta-sweep k-sweep k-sweep-layers-apart
report: $(INSTALLED) ## write all tables and figures of README.md and docs/, and a page of all runs into docs/report
	$(BIN)/python -m benchmarks tables
	$(BIN)/python -m benchmarks report --out docs/report \
	    --runs $(REPORTED:%=benchmarks/results/%.csv.xz) $(wildcard benchmarks/results/comparison.csv.xz)

lint: $(INSTALLED) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED) ## let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED) ## build the documentation into docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

clean: ## remove what was built, .venv too
	rm -rf $(VENV) docs/_build .pytest_cache .mypy_cache .ruff_cache .coverage *.egg-info
