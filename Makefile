# `make demo` and `make test` run on a fresh Debian machine: they install what they need.

PYTHON ?= /usr/bin/python3
ARGS ?=
# Of test-slurm.
TESTS ?= tests/slurm
# Tests of one file share daemons, so one worker runs them all. --pdb needs AT_ONCE=
AT_ONCE ?= -n 2 --dist loadfile
# Order of the longer tests; ORDER= runs them in random order, like `make test`.
ORDER ?= -p no:randomly

# The local cluster runs jobs as other users, who must have access to the venv: it is outside of a
# checkout that is closed to them (checked as root only: other clusters have no other users).
CLOSED := $(shell [ "$$(id -u)" = 0 ] && ! setpriv --reuid=65534 --regid=65534 --clear-groups test -x '$(CURDIR)' && echo yes)
VENV := $(if $(CLOSED),/var/tmp/bootseer-venv-$(firstword $(shell echo '$(CURDIR)' | cksum)),build/venv)
BIN := $(VENV)/bin
# Separate environments: one has PyTorch, and the other is modified while its tests run.
TORCH := $(VENV)/torch
MUTATE := $(VENV)/mutate
EXTRAS := [dev,docs]
PIP := $(BIN)/pip -qq --disable-pip-version-check
# Precedes commands that create the venv, which other users read.
OPEN := umask 022 &&

# Includes folders, whose time changes when files are removed; not dev/, where pip builds.
SOURCES := $(shell find bootseer dev/bootseer_dev dev/pyproject.toml c_ext spank prolog epilog importer squashfuse enroot slurm-conf-examples setup.py \
             -name __pycache__ -prune -o -print)
C_FILES = $(wildcard c_ext/*.[ch] c_ext/squashfs/*.[ch] spank/*.[ch] tests/fuzz/c/*.c)
# Running time of each fuzz target.
SECONDS ?= 600

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

deps: ## install missing Debian packages (debian-packages.txt) without starting services
	@tools/install-debian-packages debian-packages.txt

venv: $(VENV)/installed ## create the virtual environment, with this checkout installed

test: venv ## run the tests; ARGS are passed to pytest
	@$(BIN)/pytest $(AT_ONCE) $(ARGS)

test-quick: venv ## run the tests that need no daemons
	@$(BIN)/pytest $(AT_ONCE) -m 'not (slurm or hdfs or kerberos or torch or faults or attacks or simulations)' $(ARGS)

test-slurm: venv ## run the tests of jobs on another Slurm release, SLURM=24.11; TESTS= selects files
	@$(BIN)/pytest -m 'slurm and not (hdfs or faults or attacks)' $(if $(SLURM),--slurm=$(SLURM)) $(TESTS) $(ARGS)

root: venv ## make the Debian root of another Slurm release, SLURM=24.11, as test-slurm does on first use
	@$(BIN)/bootseer dev cluster root $(SLURM)

packages: venv ## build .deb and .rpm packages in build/packages; ARGS="debian12 --revision 2"
	@$(BIN)/bootseer dev packages $(ARGS)

test-packages: venv ## install, upgrade and remove the packages on clean Debian 12 and 13
	@$(BIN)/pytest $(ORDER) -m packages $(ARGS)

demo: venv ## compare a cold and a warm start on a local Slurm cluster
	@$(BIN)/bootseer dev demo $(ARGS)

demo-hdfs: venv ## run the demo with a checkpoint in a local HDFS
	@$(BIN)/bootseer dev demo --hdfs $(ARGS)

bench: venv ## measure the figures of the documentation
	@$(BIN)/bootseer dev bench $(ARGS)

bench-ckpt: venv ## measure reads and writes of checkpoints in HDFS
	@$(BIN)/bootseer dev bench-ckpt $(ARGS)

bench-image: venv ## measure starts from an image in a slow store, in every access mode
	@$(BIN)/bootseer dev bench-image $(ARGS)

bench-scale: venv ## count what jobs of many nodes ask of the NameNode
	@$(BIN)/bootseer dev bench-scale $(ARGS)

bench-env: venv ## measure an environment on all nodes of a job, in every mode
	@$(BIN)/bootseer dev bench-env $(ARGS)

bench-harm: venv ## measure starts that BootSeer could slow down, with and without it
	@$(BIN)/bootseer dev bench-harm $(ARGS)

race: venv ## race a job's start: today's, the best by hand, BootSeer's; ARGS=--small for a try
	@$(BIN)/bootseer dev race $(ARGS)

fsx: venv ## run random operations on a checkpoint mount for ten minutes
	@$(BIN)/bootseer dev fsx $(ARGS)

faults: venv ## run the fault tests: killed daemons, full disks, damaged files
	@$(BIN)/pytest $(ORDER) -m faults $(ARGS)

simulate: venv ## simulate several mounts with random faults, for SECONDS (600)
	@BOOTSEER_SIMULATE_S=$(SECONDS) $(BIN)/pytest -m simulations $(ARGS)

fuzz: venv ## fuzz all decoders, each for SECONDS (600); ARGS selects some
	@$(BIN)/python tests/fuzz/run.py --seconds $(SECONDS) $(ARGS)

mutate: $(MUTATE)/installed ## run mutation tests; ARGS="--count 200"
	@$(MUTATE)/bin/python tests/mutate/run.py $(ARGS)

attacks: venv ## run attacks by a second user on root, other users and the node
	@$(BIN)/pytest $(ORDER) -m attacks $(ARGS)

test-torch: $(TORCH)/installed ## test PyTorch checkpoints on a mount; downloads PyTorch, several GB
	@$(BIN)/pytest -m torch $(ARGS)

docs: venv ## build the documentation as a site: build/site/index.html
	@NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1 $(BIN)/mkdocs build --quiet --strict

check: lint types contracts ## run lint, types and contracts

lint: venv ## check format and lint of Python and C
	@$(BIN)/ruff format --quiet --check
	@$(BIN)/ruff check --quiet
	@clang-format --dry-run -Werror $(C_FILES)

types: venv ## run mypy --strict
	@$(BIN)/mypy

contracts: venv ## check which packages may import which
	@$(BIN)/lint-imports --no-cache

fmt: venv ## format Python and C
	@$(BIN)/ruff check --quiet --fix-only
	@$(BIN)/ruff format --quiet
	@clang-format -i $(C_FILES)

clean: ## remove everything built, including images and the virtual environment
	@rm -rf build dev/build $(VENV) *.egg-info dev/*.egg-info

.PHONY: help deps venv test test-quick test-slurm root packages test-packages demo demo-hdfs bench bench-ckpt bench-image bench-scale bench-env bench-harm race fsx faults attacks simulate fuzz mutate test-torch docs check lint types contracts fmt clean
.DELETE_ON_ERROR:

$(BIN)/pip: | deps
	@echo "making a virtual environment in $(VENV)"
	@$(OPEN) mkdir -p $(VENV) && test -O $(VENV)
	@$(OPEN) $(PYTHON) -m venv $(VENV)
	@$(OPEN) $(PIP) install setuptools wheel

# Dependencies are installed again only when pyproject.toml has changed. Setuptools' left-overs in
# build/ are removed first: they would install deleted modules again.
$(VENV)/installed: pyproject.toml $(SOURCES) | $(BIN)/pip deps
	@echo "installing this checkout into $(VENV)"
	@rm -rf build/lib* build/bdist* build/temp* dev/build
	@$(OPEN) $(PIP) install $(if $(filter pyproject.toml,$?),'.$(EXTRAS)' ./dev,--no-deps --no-build-isolation . ./dev)
	@touch $@

$(MUTATE)/installed: $(VENV)/installed
	@echo "installing this checkout into $(MUTATE)"
	@rm -rf build/lib* build/bdist* build/temp* dev/build
	@$(OPEN) $(PYTHON) -m venv $(MUTATE)
	@$(OPEN) $(MUTATE)/bin/pip -qq --disable-pip-version-check install '.[dev]' ./dev setuptools wheel cosmic-ray coverage
	@touch $@

$(TORCH)/installed: | $(VENV)/installed
	@echo "installing PyTorch into $(TORCH)"
	@$(OPEN) $(PYTHON) -m venv $(TORCH)
	@$(OPEN) $(TORCH)/bin/pip -qq --disable-pip-version-check install numpy safetensors torch
	@touch $@
