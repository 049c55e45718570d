# Elastic GPU. The four commands people use:
#
#   make demo    a cluster of simulated GPUs on this machine, and the example manifests running on it
#   make test    every test (unit, property, integration, end to end)
#   make check   style, types, layers, generated files
#   make bench   speed and memory, as ratios against a baseline of the same run
#
# Each sets up what it needs: a virtual environment in .venv from the hashed lock files, and the native build.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check -qq

# Tests mostly wait for processes they started, so one worker more than there are cores.
WORKERS ?= $(shell expr $$(nproc) + 1)

NATIVE_SOURCES := $(shell find native -type f \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name '*.ptx' -o -name '*.map' -o -name 'CMakeLists.txt' \))

.DEFAULT_GOAL := help
.PHONY: help sanitize demo test test-python test-native check bench bench-scheduling format generate clean

help:  ## what can be made
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,8p'

$(VENV)/.run: requirements/run.txt
	@echo "setting up $(VENV) with $(PYTHON)"
	@scripts/make_venv.sh $(PYTHON) $(VENV)
	@$(PIP) install --require-hashes -r requirements/run.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	@echo "adding the tools for tests and checks"
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@

# An editable install: Python comes from src/, the compiled parts from the build.
$(VENV)/.installed: $(VENV)/.run pyproject.toml $(NATIVE_SOURCES)
	@echo "building the native part and installing egpu"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

demo: $(VENV)/.installed  ## the whole flow, on simulated GPUs
	@$(BIN)/egpu demo

test: test-native test-python

test-python: $(VENV)/.dev $(VENV)/.installed
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-native: $(VENV)/.dev
	@PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S native -B build/native -G Ninja -DEGPU_TESTS=ON > build-native.log 2>&1 || { cat build-native.log; exit 1; }
	@rm -f build-native.log
	@PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/native
	@PATH="$(CURDIR)/$(BIN):$$PATH" ctest --test-dir build/native --output-on-failure

# The native tests once more, with the address and undefined behaviour sanitizers, then with the thread sanitizer. Leaks are
# not looked for: what a forked child forgets is lost on purpose.
sanitize: $(VENV)/.dev
	@for kind in address,undefined thread; do \
	  PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S native -B build/sanitize-$$kind -G Ninja -DEGPU_TESTS=ON -DCMAKE_C_FLAGS="-fsanitize=$$kind -fno-omit-frame-pointer" > /dev/null && \
	  PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/sanitize-$$kind --target pace_test && \
	  ASAN_OPTIONS=detect_leaks=0 ctest --test-dir build/sanitize-$$kind -R interposer --output-on-failure || exit 1; \
	done
	EGPU_TEST_SANITIZER=address $(BIN)/python -m pytest tests/integration/test_interposer.py tests/integration/test_isolation_storm.py
	EGPU_TEST_SANITIZER=thread $(BIN)/python -m pytest tests/integration/test_interposer.py tests/integration/test_isolation_storm.py

check: $(VENV)/.dev $(VENV)/.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_crds.py --check
	$(BIN)/python scripts/generate_driver_table.py --check
	$(BIN)/python scripts/generate_protos.py --check
	$(BIN)/python scripts/generate_scheduler_config.py --check
	$(BIN)/python scripts/generate_remote.py --check

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

generate: $(VENV)/.dev $(VENV)/.installed  ## write the generated files anew
	$(BIN)/python scripts/generate_crds.py
	$(BIN)/python scripts/generate_driver_table.py
	$(BIN)/python scripts/generate_protos.py
	$(BIN)/python scripts/generate_scheduler_config.py
	$(BIN)/python scripts/generate_remote.py

bench: $(VENV)/.dev $(VENV)/.installed
	@$(BIN)/python -m benchmarks

# About an hour on one core; a part of it: make bench-scheduling STAGES="published speed"
bench-scheduling: $(VENV)/.dev $(VENV)/.installed  ## the tables and plots of docs/scheduling.md
	@$(BIN)/python -m benchmarks.scheduling $(STAGES)

clean:
	rm -rf build $(VENV) .cache
