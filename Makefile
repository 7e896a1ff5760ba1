# make demo                         builds a virtual environment and runs the demo in it
# make test                         the tests; those on real cases skip without CASES
# make test CASES=../shared/cases   … with them
# make lint                         ruff and mypy
# CONSTRAINTS=constraints.txt pins every package to the versions CI runs with.

PYTHON ?= python3
VENV ?= .venv
CASES ?=
CONSTRAINTS ?=
DEMO_FLAGS ?=
# Files in their order, not the ones with many tests first: few tests can be the long ones.
TEST_FLAGS ?= -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: installed demo test lint clean

demo: $(VENV)/installed
	$(VENV)/bin/zephon-mm demo $(DEMO_FLAGS)

test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest tests kernels/tests $(if $(CASES),--cases $(CASES)) $(TEST_FLAGS)

lint: $(VENV)/installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

installed: $(VENV)/installed

$(VENV)/installed: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo_out
