# From a fresh clone, with only Python 3.10 or newer installed:
#
#   make demo         train a small model under ddptop, to try it out
#   make test         everything CI runs: lint, types, import contracts, tests
#
#   make check        the same without the slow tests
#   make test-frameworks  real accelerate, Lightning, transformers, DeepSpeed, TensorFlow, Horovod,
#                     in environments that it creates once (5 GB, 10 minutes)
#   make test-torch TORCH=2.6.0  the tests of jobs and ranks with another torch, in an environment
#                     of its own (6 GB), which goes once they pass (KEEP=1 keeps it)
#   make lint         ruff, mypy, import contracts
#   make format       fix everything ruff can fix
#   make docs         regenerate docs/reference.md
#   make snap         accept the current pictures of the TUI (check the diff first)
#   make bench        measure ddptop's overhead
#   make gpu-proof    try ddptop on this machine's NVIDIA GPU, and print the table for docs/gpu.md
#   make faults       write the table in docs/resilience.md: every fault five times (RUNS=5);
#                     ddptop's 90 runs take about 40 minutes, torchrun's 60 about 50
#   make screenshots  take the pictures for the README from the real program
#   make dist         build wheel and sdist, and run both as people install them (5 GB, 3 minutes)
#   make clean        remove the virtual environment and all caches

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
DEMO_READY := $(VENV)/.demo-ready
DEV_READY := $(VENV)/.dev-ready
PACKAGE_INPUTS := pyproject.toml constraints.txt runner/ddptop_runner/version.py

# separate environments for frameworks that conflict; to use an existing one, pass its Python:
# make test-frameworks FRAMEWORKS_TORCH=/path/to/bin/python
FRAMEWORKS := .frameworks
FRAMEWORKS_TORCH ?=
FRAMEWORKS_TENSORFLOW ?=
FRAMEWORKS_HOROVOD ?=
FRAMEWORKS_READY := \
  $(if $(FRAMEWORKS_TORCH),,$(FRAMEWORKS)/torch/.ready) \
  $(if $(FRAMEWORKS_TENSORFLOW),,$(FRAMEWORKS)/tensorflow/.ready) \
  $(if $(FRAMEWORKS_HOROVOD),,$(FRAMEWORKS)/horovod/.ready)
PINNED_TORCH := $(shell grep '^torch==' constraints.txt)
HOROVOD := horovod-0.28.1

# what runs under the job's Python, and what it decides; torch pins its own version of sympy
TORCH ?= $(PINNED_TORCH:torch==%=%)
TORCH_ENV := $(FRAMEWORKS)/torch-$(TORCH)-py$(shell $(PYTHON) -c \
  'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
TORCH_TESTS := tests/unit/agent tests/unit/probe tests/system/jobs
TORCH_SPREAD ?= -n 2 --dist loadfile

# many tests wait for real processes: five files at a time, each in order, on any machine
SPREAD := -n 5 --dist loadfile --no-loadscope-reorder

# hundreds of processes would each compile ddptop anew
export PYTHONDONTWRITEBYTECODE =

# mypy has one core: on the other the tests are compiled once, not by each worker
COMPILE_TESTS := $(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1
LINT_AND_COMPILE := $(COMPILE_TESTS) & $(MAKE) --no-print-directory lint; status=$$?; wait; exit $$status

.DEFAULT_GOAL := help
.PHONY: help demo test test-frameworks test-torch check lint format docs snap bench gpu-proof faults screenshots \
  dist clean system-tools
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

# --- what the person meets -------------------------------------------------------------------

demo: $(DEMO_READY)
	@$(BIN)/ddptop demo

test: export DDPTOP_TEST_REQUIRE = tmux torch
test: system-tools $(DEV_READY)
	@$(LINT_AND_COMPILE)
	$(BIN)/python -m pytest $(SPREAD)

check: $(DEV_READY)
	@$(LINT_AND_COMPILE)
	$(BIN)/python -m pytest $(SPREAD) -m "not slow"

test-frameworks: system-tools $(DEV_READY) $(FRAMEWORKS_READY)
	FRAMEWORKS_TORCH=$(FRAMEWORKS_TORCH) FRAMEWORKS_TENSORFLOW=$(FRAMEWORKS_TENSORFLOW) \
	  FRAMEWORKS_HOROVOD=$(FRAMEWORKS_HOROVOD) $(BIN)/python -m pytest tests/system/frameworks $(TESTS)

test-torch: export DDPTOP_TEST_REQUIRE = tmux torch
test-torch: system-tools $(TORCH_ENV)/.ready
	$(TORCH_ENV)/bin/python -m pytest $(TORCH_SPREAD) $(or $(TESTS),$(TORCH_TESTS))
	$(if $(KEEP),,rm -rf $(TORCH_ENV))

lint: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV_READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DEV_READY)
	$(BIN)/python tools/reference.py

snap: $(DEV_READY)
	$(BIN)/python -m pytest --snapshot-update tests/screens

gpu-proof: $(DEV_READY)
	$(BIN)/python benchmarks/gpu_proof.py

NO_BENCH := %/common.py %/feed.py %/gpu_proof.py %/probe_cost_trainings.py %/sick.py %/useful_time.py
bench: $(DEV_READY)
	@missed=; \
	for script in $(filter-out $(NO_BENCH),$(wildcard benchmarks/*.py)); do \
	  echo "== $$script"; $(BIN)/python "$$script" || missed="$$missed $$script"; \
	done; \
	[ -z "$$missed" ] || { echo "make: benchmarks exceeded their limits:$$missed" >&2; exit 1; }

RUNS ?= 5
LAUNCHERS ?= ddptop,torchrun
faults: $(DEV_READY)
	$(BIN)/python benchmarks/faults/table.py --runs $(RUNS) --launchers $(LAUNCHERS) --write

screenshots: $(DEV_READY)
	$(BIN)/python screenshots/make.py
	$(BIN)/python screenshots/foreign.py

# A person who has only the wheel: with torch beside it by pip, or, by pipx, with torch in an active environment.
# The wheel made from the sdist must be the one made from the clone. torch's wheels need not be kept.
TRY := $(abspath dist/try)
DEMO := cd $(TRY) && DDPTOP_HOME=$(TRY)/home DDPTOP_TMUX_SOCKET=ddptop-dist-$$$$
dist: $(DEV_READY)
	@rm -rf dist
	@$(PIP) install -q -c constraints.txt --group dist
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	$(BIN)/python -m build --no-isolation --wheel --outdir $(TRY)/clone . >/dev/null
	cmp dist/*.whl $(TRY)/clone/*.whl
	$(BIN)/python -m twine check --strict dist/*.whl dist/*.tar.gz
	$(PYTHON) -m venv $(TRY)/pip
	$(TRY)/pip/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt \
	  "$$(echo dist/*.whl)[torch]"
	PIPX_HOME=$(TRY)/pipx PIPX_BIN_DIR=$(TRY)/bin PIPX_MAN_DIR=$(TRY)/man $(BIN)/python -m pipx install -q \
	  --pip-args='-c constraints.txt' dist/*.whl
	@for ddptop in $(TRY)/pip/bin/ddptop $(TRY)/bin/ddptop; do \
	  echo "$$ddptop"; $$ddptop --version && export VIRTUAL_ENV=$(TRY)/pip && \
	  (unset PYTHONPATH; $(DEMO); export DDPTOP_HOME DDPTOP_TMUX_SOCKET; \
	   job=$$($$ddptop demo -d --steps 20) && $$ddptop wait "$$job" && $$ddptop ls) || exit 1; \
	done
	@rm -rf $(TRY)

clean:
	rm -rf $(VENV) $(FRAMEWORKS) dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up ----------------------------------------------------------------------------------
# A stamp is newer than what it was made from, so a second run installs nothing.

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "make: $(PYTHON) is not installed: ddptop needs Python 3.10 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "make: ddptop needs Python 3.10 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1);" \
	    "use a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "make: $(PYTHON) cannot create virtual environments; on Debian or Ubuntu, run:" \
	    "sudo apt install python3-venv" >&2; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv $(VENV)

$(DEMO_READY): $(PACKAGE_INPUTS) | $(BIN)/python
	@echo "installing ddptop and torch into $(VENV) (once)"
	@$(PIP) install -q -c constraints.txt pip
	@$(PIP) install -q -c constraints.txt -e '.[torch]'
	@touch $@

$(DEV_READY): $(DEMO_READY)
	@echo "installing developer tools into $(VENV) (once)"
	@$(PIP) install -q -c constraints.txt -e '.[torch]' --group dev
	@touch $@

# torch stands on every line: another package must not change it
$(FRAMEWORKS)/torch/.ready: constraints.txt
	@echo "installing $(PINNED_TORCH) and its frameworks into $(@D) (once)"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install -q -c constraints.txt $(PINNED_TORCH) numpy
	@$(@D)/bin/python -m pip install -q -c constraints.txt $(PINNED_TORCH) accelerate lightning \
	  transformers deepspeed rich
	@touch $@

$(TORCH_ENV)/.ready: $(PACKAGE_INPUTS)
	@echo "installing torch $(TORCH) and ddptop into $(@D)"
	@$(PYTHON) -m venv --clear $(@D)
	@grep -Ev '^(torch|sympy)==' constraints.txt >$(@D)/constraints.txt
	@$(@D)/bin/python -m pip install -q -c $(@D)/constraints.txt pip
	@$(@D)/bin/python -m pip install -q --no-cache-dir -c $(@D)/constraints.txt -e . \
	  torch==$(TORCH) numpy --group dev
	@touch $@

$(FRAMEWORKS)/tensorflow/.ready: constraints.txt
	@echo "installing TensorFlow into $(@D) (once)"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install -q -c constraints.txt tensorflow-cpu
	@touch $@

# its CMake files ask for C++ 14, and this torch needs 17 or newer
$(FRAMEWORKS)/horovod/.ready: constraints.txt
	@for tool in cmake g++; do command -v $$tool >/dev/null || { \
	  echo "make: building Horovod requires $$tool" >&2; exit 1; }; done
	@echo "building $(HOROVOD) into $(@D) (once, 5 to 7 minutes; build.log)"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install -q -c constraints.txt $(PINNED_TORCH) 'setuptools<81' wheel \
	  cloudpickle psutil pyyaml packaging numpy
	@cd $(@D) && bin/python -m pip download -q --no-deps --no-binary :all: --no-build-isolation \
	  $(subst -,==,$(HOROVOD)) && tar xf $(HOROVOD).tar.gz
	@cd $(@D)/$(HOROVOD) && sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 20/' \
	  CMakeLists.txt horovod/torch/CMakeLists.txt
	@HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
	  HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 MAKEFLAGS=-j1 \
	  $(@D)/bin/python -m pip install -c constraints.txt --no-deps --no-build-isolation \
	  ./$(@D)/$(HOROVOD) >$(@D)/build.log 2>&1 || { tail -n 20 $(@D)/build.log >&2; exit 1; }
	@rm -rf $(@D)/$(HOROVOD) $(@D)/$(HOROVOD).tar.gz
	@touch $@

# What the tests run beside Python, as TOOL=PACKAGES. As root on Debian or Ubuntu it is installed, and none of
# its daemons is started or enabled. Without an optional tool, its tests are skipped. A user's PATH lacks
# /usr/sbin, where dpkg and the daemons are.
REQUIRED_TOOLS := tmux=tmux cc=gcc,libc6-dev
OPTIONAL_TOOLS := sshd=openssh-server slurmctld=slurm-wlm munged=munge ip=iproute2 \
  screen=screen mpirun=openmpi-bin chromium=chromium promtool=prometheus
system-tools:
	@PATH="$$PATH:/usr/sbin:/sbin"; export DEBIAN_FRONTEND=noninteractive; \
	missing() { for one; do command -v "$${one%%=*}" >/dev/null || echo "$${one#*=}" | tr , ' '; done; }; \
	wanted=$$(missing $(REQUIRED_TOOLS) $(OPTIONAL_TOOLS)); \
	if [ -n "$$wanted" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing" $$wanted; policy=/usr/sbin/policy-rc.d; new=; \
	  [ -e $$policy ] || { new=1; printf '#!/bin/sh\nexit 101\n' >$$policy; chmod 755 $$policy; }; \
	  before=$$(dpkg-query -W -f '$${Package}\n'); \
	  apt-get update -qq; \
	  for package in $$wanted; do \
	    apt-get install -qq -y --no-install-recommends $$package >/dev/null </dev/null || \
	      echo "make: $$package was not installed" >&2; \
	  done; \
	  for unit in openssh-server:ssh munge:munge slurmd:slurmd slurmctld:slurmctld prometheus:prometheus; do \
	    echo "$$before" | grep -qx "$${unit%:*}" || systemctl -q disable "$${unit#*:}" 2>/dev/null || :; \
	  done; \
	  [ -z "$$new" ] || rm -f $$policy; \
	fi; \
	lacking=$$(missing $(REQUIRED_TOOLS)); \
	[ -z "$$lacking" ] || { echo "make: the tests require" $$lacking"; on Debian or Ubuntu, run:" \
	  "sudo apt install" $$lacking >&2; exit 1; }
