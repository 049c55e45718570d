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

NATIVE_SOURCES := $(shell find native -type f \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name '*.def' -o -name '*.ptx' -o -name '*.map' -o -name 'CMakeLists.txt' \))

C_FILES = $(shell git ls-files '*.c' '*.h')

.DEFAULT_GOAL := help
.PHONY: help walk-docs excerpt screenshots fuzz mutants sanitize storm faults technologies torch jax demo test test-cluster image-root test-python test-pythons test-quick test-native check bench bench-scheduling format generate wheel clean

help:  ## what can be made
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,8p'

$(VENV)/.run: requirements/run.txt
	@scripts/check_tools.sh $(PYTHON)
	@echo "setting up $(VENV) with $(PYTHON)"
	@scripts/make_venv.sh $(PYTHON) $(VENV)
	@$(PIP) install --no-compile --require-hashes -r requirements/run.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	@echo "adding the tools for tests and checks"
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@

# An editable install: Python comes from src/, the compiled parts from the build.
$(VENV)/.installed: $(VENV)/.run pyproject.toml $(NATIVE_SOURCES)
	@scripts/check_tools.sh $(BIN)/python
	@echo "building the native part and installing egpu"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

demo: $(VENV)/.installed  ## the whole flow, on simulated GPUs
	@$(BIN)/egpu demo

test: test-native test-python

# In the order of the folders, those of whole clusters first: files with few tests take longest, and would otherwise come last.
test-python: $(VENV)/.dev $(VENV)/.installed
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10

# The tests without clusters and processes with the other Pythons that we name, each in an environment of its own below build. Which of them this
# machine has not is said.
PYTHONS ?= python3.12 python3.13
test-pythons:
	@for python in $(PYTHONS); do \
	    if ! $$python -c '' > /dev/null 2>&1; then echo "no $$python on this machine: not tested with it" >&2; continue; fi; \
	    mkdir -p build && $(MAKE) --no-print-directory VENV=build/$$(basename $$python) PYTHON=$$python test-quick || exit 1; \
	done

test-quick: $(VENV)/.dev $(VENV)/.installed
	@$(BIN)/python -m pytest -q -n $(WORKERS) tests/unit tests/property

# The tests of tests/cluster on the real cluster of KUBECONFIG, where Elastic GPU is installed; without one, on the embedded cluster, as
# `make test` runs them. What else it can be told is at the top of tests/cluster/conftest.py.
test-cluster: $(VENV)/.dev $(VENV)/.installed
	@EGPU_TEST_KUBECONFIG="$(KUBECONFIG)" $(BIN)/python -m pytest tests/cluster

# What the image holds, as files in build/image, and its size. As root on Debian 12 with mmdebstrap; not part of `make test`.
IMAGE_MIB := 200
image-root:
	@rm -rf build/image && mkdir -p build/image && deploy/image/build.sh build/image
	@chroot build/image /opt/elastic-gpu/bin/egpu version
	@size=$$(du -sm build/image | cut -f1); echo "$$size MiB, $(IMAGE_MIB) at the most"; test "$$size" -le $(IMAGE_MIB)

# Every console block of README and docs, run: in this tree, in a fresh clone as an unprivileged user, from a wheel. Some minutes; one of them
# alone: .venv/bin/python scripts/walk_docs.py --in wheel. `make test` compares what needs no more than seconds.
walk-docs: $(VENV)/.dev $(VENV)/.installed
	@$(BIN)/python scripts/walk_docs.py
	@$(BIN)/python scripts/walk_docs.py --in clone $(if $(filter 0,$(shell id -u)),--as nobody)
	@$(BIN)/python scripts/walk_docs.py --in wheel

# The README's excerpt of the demo, from a run of it now.
excerpt: $(VENV)/.installed
	@$(BIN)/python scripts/generate_excerpt.py

# The dashboard's pages at three widths, light and dark, of a cluster that is filled for it; needs Debian's chromium, and two minutes.
screenshots: $(VENV)/.dev $(VENV)/.installed
	@cd tests && ../$(BIN)/python -m support.screenshots

test-native: $(VENV)/.dev
	@PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S native -B build/native -G Ninja -DEGPU_TESTS=ON > build-native.log 2>&1 || { cat build-native.log; exit 1; }
	@rm -f build-native.log
	@PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/native
	@PATH="$(CURDIR)/$(BIN):$$PATH" ctest --test-dir build/native --output-on-failure --parallel $$(nproc)

# What is native once more under sanitizers: ctest and the tests in Python that load it. About ten minutes on two cores; not
# part of `make test`. One kind alone: make sanitize SANITIZERS=address (with undefined behaviour) or thread.
SANITIZERS ?= address thread
SANITIZE_TESTS := $(addprefix tests/integration/test_,$(addsuffix .py,sim_engine sim_driver sim_memory sim_machine sim_graphs \
    sim_faults sim_nvml sim_textures nccl samples interposer isolation_sharing isolation_storm remote))
SANITIZE_TESTS_address := tests/integration/test_runtime_programs.py
SANITIZE_FLAGS_address := address,undefined
SANITIZE_FLAGS_thread := thread

sanitize: $(addprefix sanitize-,$(SANITIZERS))

sanitize-%: $(VENV)/.dev $(VENV)/.installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S native -B build/$@ -G Ninja -DEGPU_SANITIZE=$(SANITIZE_FLAGS_$*) -DEGPU_DRIVER_TESTS=ON > /dev/null
	@PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/$@
	@PATH="$(CURDIR)/$(BIN):$$PATH" ASAN_OPTIONS=detect_leaks=0 ctest --test-dir build/$@ --output-on-failure
	@EGPU_TEST_SANITIZER=$* $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(SANITIZE_TESTS) $(SANITIZE_TESTS_$*)

# Every decoder of bytes that come from somebody else, with libFuzzer (clang and its libclang-rt), FUZZ_SECONDS for each; what is found stays in
# build/fuzz. `make test` runs the same for a bounded number of inputs.
FUZZ_SECONDS ?= 60
CLANG ?= clang
fuzz: $(VENV)/.dev
	@command -v $(CLANG) > /dev/null || { echo "make fuzz needs clang with libFuzzer (Debian: clang and libclang-rt-14-dev); CLANG=... names another" >&2; exit 1; }
	@PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S native -B build/fuzz -G Ninja -DCMAKE_C_COMPILER=$(CLANG) -DEGPU_FUZZ=ON -DFUZZ_SECONDS=$(FUZZ_SECONDS) > /dev/null
	@PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/fuzz --target fuzz

# Do the tests notice when a rule of core is changed? See scripts/mutants.py; a part of it: make mutants MUTANTS="gangs claims"
$(VENV)/.mutants: requirements/mutants.txt $(VENV)/.dev
	@$(PIP) install --require-hashes -r requirements/mutants.txt
	@touch $@

# Tenants on simulated cards, half of them hostile, round after round; not part of `make test`, which has a short one. As root. Bytes are
# counted, so the cards keep none for themselves, as in all tests.
# Other ones, or from where a run stopped: make storm STORM="--tenants 20 --rounds 50 --seed 7 --first-round 30"
STORM ?=
storm: $(VENV)/.dev $(VENV)/.installed
	@cd tests && ../$(BIN)/python -m support.hostile_storm $(STORM)

# Components killed, paused, rolled over, refused and cut off, one after the other, under programs that must not notice; `make test` has one
# fault of each kind. About ten minutes; others: make faults ROUNDS=500 SEED=7
ROUNDS ?= 210
SEED ?= 1
faults: $(VENV)/.dev $(VENV)/.installed
	@EGPU_FAULT_ROUNDS=$(ROUNDS) EGPU_FAULT_SEED=$(SEED) $(BIN)/python -m pytest -q tests/e2e/test_faults.py

# PyTorch's and JAX's CUDA wheels on simulated cards, step by step; not part of `make test`: each is 3 GB, and 4 to 6 unpacked.
build/torch/.made build/jax/.made: build/%/.made: requirements/%.txt
	@scripts/make_venv.sh $(PYTHON) $(@D)
	@$(@D)/bin/pip --disable-pip-version-check -qq install --no-compile --require-hashes -r $<
	@touch $@

torch: build/torch/.made $(VENV)/.dev $(VENV)/.installed
	@$(BIN)/python scripts/wheel_suite.py $@ --python build/$@/bin/python
jax: build/jax/.made $(VENV)/.dev $(VENV)/.installed
	@$(BIN)/python scripts/wheel_suite.py $@ --python build/$@/bin/python

# Every technology on the same few cards at random, the extender and the agents killed at any step, and a witness that looks at each card after
# each; `make test` has 100 rounds. Another: make technologies TECHNOLOGIES="--rounds 20000 --seed 7"
TECHNOLOGIES ?= --rounds 3000
technologies: $(VENV)/.dev $(VENV)/.installed
	@cd tests && ../$(BIN)/python -m support.technology_storm $(TECHNOLOGIES)

mutants: $(VENV)/.mutants $(VENV)/.installed
	@$(BIN)/python scripts/mutants.py $(MUTANTS)

check: $(VENV)/.dev $(VENV)/.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_crds.py --check
	$(BIN)/python scripts/generate_chart.py --check
	$(BIN)/python scripts/generate_driver_table.py --check
	$(BIN)/python scripts/generate_protos.py --check
	$(BIN)/python scripts/generate_scheduler_config.py --check
	$(BIN)/python scripts/generate_webhooks.py --check
	$(BIN)/python scripts/generate_remote.py --check
	$(BIN)/python scripts/generate_runtime_table.py --check
	$(BIN)/python scripts/generate_sbom.py --check
	$(BIN)/python scripts/generate_metrics_table.py --check
	$(BIN)/python scripts/audit.py

# The wheel, built twice in two places and compared byte by byte; it is left in dist.
wheel: $(VENV)/.dev
	@$(BIN)/python scripts/reproducible_wheel.py dist

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(C_FILES)

generate: $(VENV)/.dev $(VENV)/.installed  ## write the generated files anew
	$(BIN)/python scripts/generate_crds.py
	$(BIN)/python scripts/generate_webhooks.py
	$(BIN)/python scripts/generate_chart.py
	$(BIN)/python scripts/generate_driver_table.py
	$(BIN)/python scripts/generate_protos.py
	$(BIN)/python scripts/generate_scheduler_config.py
	$(BIN)/python scripts/generate_remote.py
	$(BIN)/python scripts/generate_runtime_table.py
	$(BIN)/python scripts/generate_sbom.py
	$(BIN)/python scripts/generate_metrics_table.py

# More: make bench BENCH="isolation --quick --out FILE --peer INTERPOSER.so"
bench: $(VENV)/.dev $(VENV)/.installed
	@$(BIN)/python -m benchmarks $(BENCH)

# About an hour on one core; a part of it: make bench-scheduling STAGES="published speed"
bench-scheduling: $(VENV)/.dev $(VENV)/.installed  ## the tables and plots of docs/scheduling.md
	@$(BIN)/python -m benchmarks.scheduling $(STAGES)

clean:
	rm -rf build mutants $(VENV) .cache
