# `make` alone lists the targets. Every target installs what it needs first (scripts/setup).
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python
# Where `make demo` leaves its checkpoint, trace and picture.
DEMO_OUTPUT ?= demo_output
# More arguments for the runners: make test PYTEST_ARGS="-k bucket" CTEST_ARGS="-R plan"
CTEST_ARGS ?=
PYTEST_ARGS ?=

CTEST := ctest --output-on-failure --no-tests=ignore -j $(JOBS)
# An environment of its own, about 30 s, once: the tool that profiles are to open in.
MSPROF := PIP_RETRIES=1 PIP_TIMEOUT=15 timeout 180 scripts/optional_environment build/msprof msprof-analyze==26.2.0
# pytest leaves with 5 where nothing was selected; that alone is no failure.
PYTEST := $(PYTHON) -m pytest -q

.PHONY: help setup build module demo test test-all test-asan test-tsan test-jax test-mindspore test-msprof bench bench-peers format check wheel clean

help:  ## print the targets
	@echo "collective-ops: make TARGET"
	@awk -F ':|## ' '/^[a-z][a-z -]*:.*## / {printf "  %-20s %s\n", $$1, $$NF}' $(MAKEFILE_LIST)

setup:  ## install Debian packages and .venv where missing
	@scripts/setup

build: setup  ## build the library, the Python modules and the native tests (build/release)
	@cmake --preset release -DCOLLECTIVE_OPS_PYTHON=ON -DCOLLECTIVE_OPS_TORCH=ON --log-level=WARNING >/dev/null
	@cmake --build --preset release -j $(JOBS)

# Without tests and benchmarks, which take most of the time.
module: setup
	@cmake --preset release -DCOLLECTIVE_OPS_PYTHON=ON --log-level=WARNING >/dev/null
	@cmake --build --preset release -j $(JOBS) --target _core _analysis

demo: module  ## train ResNet-50 on real digits with 8 ranks, then draw the heat map
	@scripts/demo $(DEMO_OUTPUT)

# Both runners always run, so that one failure does not hide another.
test: build  ## run every test that fits in minutes
	@$(MSPROF) || true  # without a package index its tests are skipped, and say so
	@native=0; python=0; \
	$(CTEST) --test-dir build/release -LE slow $(CTEST_ARGS) || native=$$?; \
	$(PYTEST) -m "not slow" $(PYTEST_ARGS) || python=$$?; \
	[[ $$python -eq 5 ]] && python=0; \
	exit $$((native | python))

test-all: build  ## run every test, the long ones and the sanitizers too
	@native=0; python=0; \
	$(CTEST) --test-dir build/release $(CTEST_ARGS) || native=$$?; \
	$(PYTEST) $(PYTEST_ARGS) || python=$$?; \
	[[ $$python -eq 5 ]] && python=0; \
	exit $$((native | python))
	@$(MAKE) --no-print-directory test-asan test-tsan

test-asan test-tsan: test-%: setup  ## run the native tests under address and undefined, or thread sanitizer
	@cmake --preset $* --log-level=WARNING >/dev/null
	@cmake --build --preset $* -j $(JOBS)
	@$(CTEST) --test-dir build/$* $(CTEST_ARGS)

# Environments of their own, which these fetch.
test-jax: build  ## run the tests with JAX (build/jax)
	@scripts/optional_environment build/jax jax numpy
	@PYTHONPATH=python JAX_PLATFORMS=cpu build/jax/bin/python -m pytest -q $(PYTEST_ARGS) tests/python/test_jax.py

test-mindspore: build  ## run the tests with MindSpore 2.10 (build/mindspore)
	@scripts/optional_environment build/mindspore mindspore==2.10.0 'numpy<2'
	@PYTHONPATH=python build/mindspore/bin/python -m pytest -q $(PYTEST_ARGS) tests/python/test_mindspore.py

test-msprof: build  ## run msprof-analyze over profiles that we make (build/msprof)
	@$(MSPROF)
	@$(PYTEST) $(PYTEST_ARGS) tests/python/test_profiler_ranks.py -k existing_tool

bench: build  ## run the benchmarks beside their peers (only some with BENCH=allreduce)
	@scripts/bench $(BENCH)

bench-peers: setup  ## get Open MPI, MPICH, Intel MPI and DeepSpeed's operator for the benchmarks (build/peers)
	@scripts/bench-peers

format:  ## format C++ with clang-format, Python with ruff
	@scripts/setup --check
	@scripts/check --fix

check:  ## format, clang-tidy of changed files (of all with ALL=1), order of layers, tidiness
	@scripts/setup --check
	@scripts/check $(if $(ALL),--all)

wheel: setup  ## build the wheels of the package and of the PyTorch backend into dist/
	@$(PYTHON) -m pip wheel -q --no-build-isolation --no-deps -w dist .
	@$(PYTHON) -m pip wheel -q --no-build-isolation --no-deps -w dist ./python/pytorch

clean:  ## remove what was built (.venv stays)
	rm -rf build dist python/collective_ops/{*.so,_perf,_topo,_tune} python/pytorch/collective_ops_torch/*.so
