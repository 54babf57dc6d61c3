# What a checkout is used through. `make` alone lists the verbs.
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long check bench

help:  ## list these verbs
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

setup: $(VENV)/.ready-sim  ## make .venv with what the demo needs

demo: setup  ## the whole loop, small: record, train, evaluate, gate, report in runs/demo/report.html
	$(BIN)/vlarge demo

test: $(VENV)/.ready-dev  ## what every change runs
	@$(BIN)/python -m compileall -q src  # once, and not in each of some hundred processes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not long" --numprocesses 2 --dist loadgroup  # two processes, one core each

test-long: $(VENV)/.ready-dev  ## the slow bars
	$(BIN)/python -m pytest -m long

check: $(VENV)/.ready-dev  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.ready-dev  ## run the benchmarks; with DATA=PATH also those that need a dataset
	$(BIN)/python benchmarks/demo.py
	$(if $(DATA),$(BIN)/python benchmarks/finetune.py --data $(DATA))

# The virtual environment, and what is installed in it: each made once, and again when the versions change.
$(VENV)/.ready:
	@for python in python3.12 python3; do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "error: vlarge needs Python 3.12 or newer, and neither python3.12 nor python3 is one: install python3.12" >&2; \
	  exit 2; \
	fi; \
	echo "making $(VENV) with $$($$found --version)"; \
	$$found -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.ready-sim: pyproject.toml constraints.txt | $(VENV)/.ready
	$(PIP) --editable '.[sim]'
	touch $@

$(VENV)/.ready-dev: pyproject.toml constraints.txt | $(VENV)/.ready
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/.ready-sim
