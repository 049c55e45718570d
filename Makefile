# Elastic GPU. `make help` lists the targets. Each sets up what it needs: a virtual environment in .venv from the hashed lock files, and
# the native build.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check
STAGE  := scripts/stage.sh

# Some images of Python set this. Each of the hundreds of processes that tests start would then compile all that it imports: a cluster
# took 11 s to start in place of 5.5.
unexport PYTHONDONTWRITEBYTECODE

# Tests wait for processes that they started for nearly half of their time, so two workers more than there are cores.
WORKERS ?= $(shell expr $$(nproc) + 2)

NATIVE_SOURCES := $(shell find native simulator/native -type f \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name '*.def' -o -name '*.ptx' -o -name '*.map' -o -name 'CMakeLists.txt' \))

C_FILES = $(shell git ls-files '*.c' '*.h' ':!**/generated/**')

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-python test-simulator test-native test-quick test-pythons test-cluster neighbours check format generate docs walk-docs excerpt screenshots \
    bench bench-scheduling sanitize fuzz mutants storm faults technologies torch jax walks samples gpu-trial wheel release image krew image-root clean

##@ Start

help:  ## this list
	@awk -F ':.*## ' '/^##@ / { print "\n" substr($$0, 5) } /^[a-z][a-z-]*:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

$(VENV)/.run: requirements/run.txt
	@scripts/check_tools.sh $(PYTHON)
	@$(STAGE) "virtual environment $(VENV) with $(PYTHON)" scripts/make_venv.sh $(PYTHON) $(VENV)
	@$(STAGE) "packages that egpu needs" $(PIP) install --no-compile --require-hashes -r requirements/run.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	@$(STAGE) "tools for tests and checks" $(PIP) install --no-compile --require-hashes -r requirements/dev.txt
	@touch $@

# An editable install: Python comes from the source folders, the compiled parts from build/native and build/simulator.
$(VENV)/.installed: $(VENV)/.run pyproject.toml base/pyproject.toml simulator/pyproject.toml $(NATIVE_SOURCES)
	@scripts/check_tools.sh $(BIN)/python
	@for part in native simulator; do \
	    source=$$part/native; [ $$part = simulator ] || source=native; \
	    PATH="$(CURDIR)/$(BIN):$$PATH" $(STAGE) "configuring $$source" cmake -S $$source -B build/$$part -G Ninja && \
	    PATH="$(CURDIR)/$(BIN):$$PATH" $(STAGE) "building $$source" cmake --build build/$$part || exit 1; \
	done
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(STAGE) "installing egpu" $(PIP) install --no-build-isolation --no-deps -C wheel.cmake=false --editable ./base --editable ./simulator --editable .
	@touch $@

demo: $(VENV)/.installed  ## a cluster of simulated GPUs on this machine, with the example manifests running on it
	@$(BIN)/egpu demo

##@ Test

test: test-native test-simulator test-python  ## every test, once

# In the order of the folders, those of whole clusters first: files with few tests take longest, and would otherwise come last.
test-python: $(VENV)/.dev $(VENV)/.installed  ## the product's tests in Python alone
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10 tests

SIMULATOR := build/simulator-env
$(SIMULATOR)/.made: requirements/simulator.txt
	@$(STAGE) "virtual environment $(SIMULATOR)" scripts/make_venv.sh $(PYTHON) $(SIMULATOR)
	@$(STAGE) "packages that egpu-sim and its tests need" $(@D)/bin/pip --disable-pip-version-check install --no-compile --require-hashes -r $<
	@touch $@

# The wheel is built in build/simulator as well, so nothing is compiled twice.
$(SIMULATOR)/.installed: $(SIMULATOR)/.made $(VENV)/.installed $(shell find base simulator -type f -not -name '*.pyc' -not -path 'simulator/tests/*')
	@rm -rf $(@D)/wheels
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(STAGE) "wheels of base and simulator" $(PIP) wheel --no-index --no-build-isolation --no-deps -C build-dir=$(CURDIR)/build/simulator --wheel-dir $(@D)/wheels ./base ./simulator
	@$(STAGE) "installing them" $(@D)/bin/pip --disable-pip-version-check install --no-index --no-deps --force-reinstall $(@D)/wheels/*.whl
	@touch $@

test-simulator: $(SIMULATOR)/.installed  ## the simulator's tests in Python, in an environment without the product
	@PATH="$$PATH:$(CURDIR)/$(BIN)" $(SIMULATOR)/bin/python -m pytest -n $(WORKERS) --dist loadfile --durations=10 simulator/tests

test-native: $(VENV)/.dev  ## the tests in C alone
	@scripts/native_tests.sh "$(CURDIR)/$(BIN)" native build/native
	@scripts/native_tests.sh "$(CURDIR)/$(BIN)" simulator/native build/simulator

test-quick: $(VENV)/.dev $(VENV)/.installed  ## the tests without clusters and processes: unit and property
	@$(BIN)/python -m pytest -q -n $(WORKERS) $(QUICK) tests/unit tests/property

# Each Python gets an environment of its own below build. Plain asserts: each worker would rewrite every module of tests anew for each Python.
# Few examples: another Python changes no rule.
PYTHONS ?= python3.12 python3.13
test-pythons:  ## test-quick with the other Pythons of PYTHONS that are on this machine
	@for python in $(PYTHONS); do \
	    if ! $$python -c '' > /dev/null 2>&1; then echo "no $$python on this machine: not tested with it" >&2; continue; fi; \
	    mkdir -p build && $(MAKE) --no-print-directory VENV=build/$$(basename $$python) PYTHON=$$python QUICK="--assert=plain --hypothesis-profile=few" test-quick || exit 1; \
	done

# Without KUBECONFIG these tests run on the simulated cluster, as in `make test`. Other settings are at the top of tests/cluster/conftest.py.
test-cluster: $(VENV)/.dev $(VENV)/.installed  ## tests/cluster on the cluster of KUBECONFIG, where Elastic GPU is installed
	@EGPU_TEST_KUBECONFIG="$(KUBECONFIG)" $(BIN)/python -m pytest tests/cluster

# With the programs of EGPU_KUBERNETES and EGPU_NEIGHBOURS: see tests/neighbours/conftest.py. Without them, all is skipped.
neighbours: $(VENV)/.dev $(VENV)/.installed  ## tests/neighbours: other projects' controllers on Kubernetes' own control plane
	@$(BIN)/python -m pytest tests/neighbours

##@ Check and generate

check: $(VENV)/.dev $(VENV)/.installed  ## style, types, layers, generated files, paths in documents, commit messages
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate.py --check
	$(BIN)/python scripts/audit.py
	$(BIN)/python scripts/check_commits.py
	$(BIN)/python -m pytest -q tests/test_tidy.py tests/test_ratchets.py tests/test_dependencies.py

format: $(VENV)/.dev  ## format Python and C, fix simple findings
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(C_FILES)

generate: $(VENV)/.dev $(VENV)/.installed  ## write the generated files anew
	$(BIN)/python scripts/generate.py

##@ Documents

# A dead link or anchor, and a page that docs/index.md does not list, are errors.
build/docs/.made: requirements/docs.txt
	@scripts/make_venv.sh $(PYTHON) $(@D)
	@$(STAGE) "tools for the documentation" $(@D)/bin/pip --disable-pip-version-check install --no-compile --require-hashes -r $<
	@touch $@

docs: build/docs/.made  ## the documentation as a site, in build/site
	@build/docs/bin/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --write-all docs build/site
	@echo "build/site/index.html"


# Some minutes. `make test` runs the blocks that need only seconds. One place alone: .venv/bin/python scripts/walk_docs.py --in wheel
walk-docs: $(VENV)/.dev $(VENV)/.installed  ## run each console block of README and docs in this tree, in a fresh clone, from a wheel
	@$(BIN)/python scripts/walk_docs.py
	@$(BIN)/python scripts/walk_docs.py --in clone $(if $(filter 0,$(shell id -u)),--as nobody)
	@$(BIN)/python scripts/walk_docs.py --in wheel

excerpt: $(VENV)/.installed  ## write the README's excerpt of the demo from a run of it
	@$(BIN)/python scripts/generate_excerpt.py

screenshots: $(VENV)/.dev $(VENV)/.installed  ## write the dashboard's pictures; needs Debian's chromium, two minutes
	@cd tests && ../$(BIN)/python -m support.screenshots

##@ Measure

# More: make bench BENCH="isolation --quick --out FILE --peer INTERPOSER.so"
bench: $(VENV)/.dev $(VENV)/.installed  ## speed and memory, as ratios against a baseline of the same run
	@$(BIN)/python -m benchmarks $(BENCH)

# A part of it: make bench-scheduling STAGES="published speed"
bench-scheduling: $(VENV)/.dev $(VENV)/.installed  ## the tables and plots of docs/operate/scheduling.md; about an hour
	@$(BIN)/python -m benchmarks.scheduling $(STAGES)

##@ Long tests

# `make test` runs a short round of each of these.
LONG_TESTS = $(shell git grep -l 'import or_long' -- 'tests/*.py')
test-long: $(VENV)/.dev $(VENV)/.installed  ## repetitions that make test leaves out
	@EGPU_TEST_LONG=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(LONG_TESTS)

# One kind alone: make sanitize SANITIZERS=address (with undefined behaviour) or thread.
SANITIZERS ?= address thread
SANITIZE_TESTS := $(addprefix simulator/tests/gpu/test_sim_,$(addsuffix .py,engine driver memory machine graphs faults nvml textures)) \
    $(addprefix tests/integration/,$(addsuffix .py,libraries/test_nccl local/test_samples isolation/test_interposer isolation/test_isolation_sharing \
        isolation/test_isolation_storm remote_cards/test_remote))
SANITIZE_TESTS_address := tests/integration/libraries/test_runtime_programs.py
SANITIZE_FLAGS_address := address,undefined
SANITIZE_FLAGS_thread := thread

sanitize: $(addprefix sanitize-,$(SANITIZERS))  ## native code under sanitizers, and the tests that load it; about ten minutes

sanitize-%: $(VENV)/.dev $(VENV)/.installed
	@for part in native simulator/native; do \
	    ASAN_OPTIONS=detect_leaks=0 scripts/native_tests.sh "$(CURDIR)/$(BIN)" $$part build/$@/$${part%%/*} \
	        -DEGPU_SANITIZE=$(SANITIZE_FLAGS_$*) -DEGPU_DRIVER_TESTS=ON || exit 1; \
	done
	@EGPU_TEST_SANITIZER=$* $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(SANITIZE_TESTS) $(SANITIZE_TESTS_$*)

# Findings stay in build/fuzz. `make test` runs the same for a bounded number of inputs.
FUZZ_SECONDS ?= 60
CLANG ?= clang
fuzz: $(VENV)/.dev  ## libFuzzer on each decoder of foreign bytes, FUZZ_SECONDS for each; needs clang
	@command -v $(CLANG) > /dev/null || { echo "make fuzz needs clang with libFuzzer (Debian: clang and libclang-rt-14-dev); CLANG=... names another" >&2; exit 1; }
	@for part in native simulator; do \
	    source=$$part/native; [ $$part = simulator ] || source=native; \
	    PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S $$source -B build/fuzz/$$part -G Ninja -DCMAKE_C_COMPILER=$(CLANG) -DEGPU_FUZZ=ON \
	        -DFUZZ_SECONDS=$(FUZZ_SECONDS) > /dev/null && \
	    PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/fuzz/$$part --target fuzz || exit 1; \
	done

$(VENV)/.mutants: requirements/mutants.txt $(VENV)/.dev
	@$(STAGE) "tools for mutants" $(PIP) install --require-hashes -r requirements/mutants.txt
	@touch $@

# A part of it: make mutants MUTANTS="gangs claims"
mutants: $(VENV)/.mutants $(VENV)/.installed  ## do the tests notice when a rule of core is changed?
	@$(BIN)/python scripts/mutants.py $(MUTANTS)

# As root. Other ones, or from where a run stopped: make storm STORM="--tenants 20 --rounds 50 --seed 7 --first-round 30"
STORM ?=
storm: $(VENV)/.dev $(VENV)/.installed  ## fifty tenants on simulated cards, half of them hostile; half an hour
	@cd tests && ../$(BIN)/python -m support.hostile_storm $(STORM)

# Others: make faults ROUNDS=500 SEED=7
ROUNDS ?= 210
SEED ?= 1
faults: $(VENV)/.dev $(VENV)/.installed  ## components killed, paused, replaced and cut off under running programs; about ten minutes
	@EGPU_FAULT_ROUNDS=$(ROUNDS) EGPU_FAULT_SEED=$(SEED) $(BIN)/python -m pytest -q tests/e2e/test_faults.py

# Another: make technologies TECHNOLOGIES="--rounds 20000 --seed 7"
TECHNOLOGIES ?= --rounds 3000
technologies: $(VENV)/.dev $(VENV)/.installed  ## every technology on the same few cards at random, with crashes
	@cd tests && ../$(BIN)/python -m support.technology_storm $(TECHNOLOGIES)

# Without dependencies, as all are in the lock files: pip finds no pin of a package that another needs with extras.
build/torch/.made build/jax/.made build/cupy/.made build/vllm/.made: build/%/.made: requirements/%.txt
	@scripts/make_venv.sh $(PYTHON) $(@D)
	@$(STAGE) "packages of $*" $(@D)/bin/pip --disable-pip-version-check install --no-compile --no-deps --require-hashes -r $<
	@touch $@

torch: build/torch/.made $(VENV)/.dev $(VENV)/.installed  ## PyTorch's CUDA wheel (3 GB) on simulated cards, step by step
	@$(BIN)/python scripts/wheel_suite.py $@ --python build/$@/bin/python
jax: build/jax/.made $(VENV)/.dev $(VENV)/.installed  ## JAX's CUDA wheels (3 GB) on simulated cards, step by step
	@$(BIN)/python scripts/wheel_suite.py $@ --python build/$@/bin/python

# Not `npm ci`, which refuses a lock file without the packages of other systems. `install` checks the hashes of the lock file, too.
build/llama.cpp/.made: requirements/llama.cpp/package-lock.json
	@mkdir -p $(@D) && cp requirements/llama.cpp/*.json $(@D)
	@$(STAGE) "packages of llama.cpp" npm --prefix $(@D) install --no-save --ignore-scripts --no-audit --no-fund
	@touch $@

# One of them: make walks WALKS=llama.cpp. llama.cpp needs Node.js 20, and PyTorch's environment for its model. With RECORD=--record what
# was found goes into the documents, after `make generate`.
RECORD ?=
WALKS ?= torch torch-start cupy llama.cpp vllm
walks: $(addprefix build/,$(addsuffix /.made,$(sort torch $(filter-out torch-start,$(WALKS))))) $(VENV)/.dev $(VENV)/.installed  ## the calls of PyTorch, CuPy, llama.cpp and vLLM (12 GB) on simulated cards that skip their kernels
	@for name in $(WALKS); do \
	    case $$name in cupy|vllm) python=build/$$name;; *) python=build/torch;; esac; \
	    $(BIN)/python scripts/wheel_walks.py $$name --python $$python/bin/python $(RECORD) || exit 1; \
	done

build/samples-env/.made: requirements/samples.txt
	@scripts/make_venv.sh $(PYTHON) $(@D)
	@$(STAGE) "NVIDIA's headers and libraries" $(@D)/bin/pip --disable-pip-version-check install --no-compile --require-hashes -r $<
	@touch $@

# A clone of github.com/NVIDIA/cuda-samples. One of them: make samples SAMPLES="DIR vectorAdd"
samples: build/samples-env/.made $(VENV)/.dev $(VENV)/.installed  ## NVIDIA's CUDA samples on a simulated card, in a slice and over the pool; needs nvcc
	@$(BIN)/python scripts/cuda_samples.py $(SAMPLES)

# PYTHON312: a Python 3.12 with NumPy, to try what was packed. tests/gpu/trial/README.md says what to do with it.
gpu-trial: $(VENV)/.installed  ## pack .gpu: a trial of fifteen minutes on a machine with a real GPU
	@tests/gpu/trial/pack.sh

##@ Release

# Folders with a pyproject.toml.
WHEELS := base simulator .
wheel: $(VENV)/.dev  ## each wheel, built twice and compared byte by byte, in dist
	@$(BIN)/python scripts/reproducible_wheel.py dist $(WHEELS)

release: $(VENV)/.dev  ## wheels, image archive and SHA256SUMS in dist; the image needs mmdebstrap on Debian 12
	@$(BIN)/python scripts/release.py dist $(WHEELS)

# No container engine, and no root where the user has a range of user ids. Another place: make image IMAGE_DIR=/tmp/image
IMAGE_DIR ?= dist
image:  ## the image as an OCI archive in dist, with its bill of materials; needs mmdebstrap on Debian 12
	@$(PYTHON) scripts/image.py $(IMAGE_DIR)

# With the place where you publish it: make krew ADDRESS=https://…
ADDRESS ?= https://elasticgpu.example
krew: $(VENV)/.dev  ## the kubectl plugin for krew in dist: an archive for this machine, and its manifest
	@$(BIN)/python scripts/krew.py dist --address $(ADDRESS)

IMAGE_MIB := 170
image-root:  ## the image's files in build/image, and their size; as root on Debian 12 with mmdebstrap
	@rm -rf build/image && mkdir -p build/image && deploy/image/build.sh build/image
	@chroot build/image /opt/elastic-gpu/bin/egpu version
	@size=$$(du -sm build/image | cut -f1); echo "$$size MiB, $(IMAGE_MIB) at the most"; test "$$size" -le $(IMAGE_MIB)

clean:  ## remove the virtual environment and everything that was built
	rm -rf build mutants .gpu $(VENV) .cache
