# Each target sets up what it needs: `make demo` and `make test` work as the first command on a fresh clone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= demo-output
JOBS ?= 2

.PHONY: install demo leaderboard test test-slow lint format bench docs notebooks clean
.DEFAULT_GOAL := install

install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

# Networks this small do not fill two threads: two processes are more than twice as fast as one.
# Three attacks at half of the protocol's radius: without the options the records grow to the whole of it.
demo: install
	$(BIN)/shiftbench run -a half -a crop -a camera --max-shift 3 --nproc 2 --output $(DEMO)/runs
	$(BIN)/shiftbench leaderboard $(DEMO)/runs --output $(DEMO)/leaderboard.csv
	$(BIN)/shiftbench leaderboard $(DEMO)/runs --output $(DEMO)/leaderboard.html
	$(BIN)/shiftbench plot $(DEMO)/runs --output $(DEMO)/curves.png

# Verify the leaderboard's records and rebuild everything that is made from them.
RECORDS := results/records results/camera results/seeds results/detection
leaderboard: install
	$(BIN)/shiftbench verify $(RECORDS) results/interpolation
	$(BIN)/shiftbench leaderboard $(RECORDS) --update results/README.md --output results/leaderboard.csv
	$(BIN)/shiftbench leaderboard $(RECORDS) --output results/leaderboard.html
	$(BIN)/python -m shiftbench.report.public results/records
	$(BIN)/python docs/make_results.py

# Tiny networks gain nothing from threads: two single-threaded processes share the files of tests.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile
test: install
	$(PYTEST)

test-slow: install
	$(PYTEST) -m 'slow and not network'

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
	$(BIN)/python benchmarks/export.py
	$(BIN)/python benchmarks/models.py
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/coverage.py

# The site goes to build/site; a broken link or an unreadable docstring is an error.
docs: install
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/mkdocs build --strict

# Runs the tutorials again and keeps their outputs.
notebooks: install
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python docs/tutorials/execute.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
