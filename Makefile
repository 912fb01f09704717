# make demo: set up .venv and run the main job.   make test: set up .venv, check style, types and documentation, and run the tests.
# make test-slow: run the tests that take seconds each, which `make test` leaves out.
# make bench-quick: run every benchmark in seconds, and check what it says.   make bench: run them all, which takes hours.
PYTHON ?= python3
unexport PYTHONDONTWRITEBYTECODE  # processes that compile all modules anew take seconds longer to start
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

.PHONY: demo test test-slow lint docs bench bench-quick clean

demo: $(VENV)/.demo
	$(BIN)/blocklp demo

test: $(VENV)/.test
	$(MAKE) -j 2 lint docs
	$(PYTEST) -m "not slow"

test-slow: $(VENV)/.test
	$(PYTEST) -m slow

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.test
	$(BIN)/python -m sphinx -W -q -b html docs docs/_build/html

bench-quick: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q bench/tests

bench: $(VENV)/.test
	$(BIN)/python -m bench all

$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[highs,densecrf]'
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile -e '.[test,lint,docs,bench]'  # modules are compiled when they are imported: half of the time
	touch $@

clean:
	rm -rf $(VENV) build dist docs/_build docs/gallery .pytest_cache .mypy_cache .ruff_cache
