# Each target sets up what it needs: `make demo` and `make test` work as the first command on a fresh clone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= demo-output

.PHONY: install demo leaderboard test lint format bench clean
.DEFAULT_GOAL := install

install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

# Networks this small do not fill two threads: two processes are more than twice as fast as one.
demo: install
	$(BIN)/shiftbench run --nproc 2 --output $(DEMO)/runs
	$(BIN)/shiftbench leaderboard $(DEMO)/runs --output $(DEMO)/leaderboard.csv
	$(BIN)/shiftbench leaderboard $(DEMO)/runs --output $(DEMO)/leaderboard.html
	$(BIN)/shiftbench plot $(DEMO)/runs --output $(DEMO)/curves.png

# The board is results/records: this checks it and rebuilds everything that is made from it.
leaderboard: install
	$(BIN)/shiftbench verify results/records
	$(BIN)/shiftbench leaderboard results/records --update README.md --output results/leaderboard.csv
	$(BIN)/shiftbench leaderboard results/records --output results/leaderboard.html

test: install
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/models.py
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
