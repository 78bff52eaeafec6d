# Every target works from a fresh clone: it creates the virtual environment it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SYNAPSE_VENV := .venv-synapse
SYNAPSE_INSTALLED := $(SYNAPSE_VENV)/.installed
SYNAPSE_REQUIREMENTS := tests/interop/requirements-synapse.txt
TEST_PROCESSES ?= 2

.PHONY: install demo run test test-slow lint format bench interop clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,spark]'
	touch $@

# Synapse lives in an environment of its own: we talk to it over the network and import nothing of it.
$(SYNAPSE_INSTALLED): $(SYNAPSE_REQUIREMENTS)
	$(PYTHON) -m venv $(SYNAPSE_VENV)
	$(SYNAPSE_VENV)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

demo: $(INSTALLED)
	$(BIN)/resync demo

resync.yaml: | $(INSTALLED)
	$(BIN)/resync generate-config > $@

run: $(INSTALLED) resync.yaml
	$(BIN)/resync --config resync.yaml migrate
	$(BIN)/resync --config resync.yaml worker

test: $(INSTALLED)
	$(BIN)/pytest --numprocesses $(TEST_PROCESSES) --dist loadgroup -m "not slow" tests/unit tests/integration

# Long crash tests, and Spark with executors in processes of their own: minutes, and 4 GB of memory.
test-slow: $(INSTALLED)
	$(BIN)/pytest -m slow tests/integration tests/cluster

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED) $(SYNAPSE_INSTALLED)
	SYNAPSE_PYTHON=$(CURDIR)/$(SYNAPSE_VENV)/bin/python $(BIN)/python -m tests.benchmarks

interop: $(INSTALLED) $(SYNAPSE_INSTALLED)
	SYNAPSE_PYTHON=$(CURDIR)/$(SYNAPSE_VENV)/bin/python $(BIN)/pytest tests/interop

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(SYNAPSE_VENV) build *.egg-info
