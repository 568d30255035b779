# `make demo` and `make test` do everything on a fresh Debian machine, installs included.

PYTHON ?= /usr/bin/python3
ARGS ?=
# A file's tests have daemons in common; those of Slurm and HDFS mostly wait. --pdb needs AT_ONCE=
AT_ONCE ?= -n 2 --dist loadfile
# Of the longer tests; with ORDER= they come in any, as those of `make test` do.
ORDER ?= -p no:randomly

# The local cluster runs jobs as other users, who must be able to reach the venv: it moves out of a
# checkout that is closed to them (only root can tell, and only root's cluster has other users).
CLOSED := $(shell [ "$$(id -u)" = 0 ] && ! setpriv --reuid=65534 --regid=65534 --clear-groups test -x '$(CURDIR)' && echo yes)
VENV := $(if $(CLOSED),/var/tmp/bootseer-venv-$(firstword $(shell echo '$(CURDIR)' | cksum)),build/venv)
BIN := $(VENV)/bin
# Of their own: nothing but its tests uses the one, and the other is changed while tests run.
TORCH := $(VENV)/torch
MUTATE := $(VENV)/mutate
PIP := $(BIN)/pip -qq --disable-pip-version-check
# Before what makes the venv: its readers are others.
OPEN := umask 022 &&

# Folders count too: theirs is the time of the last removal.
SOURCES := $(shell find bootseer dev c_ext spank prolog epilog importer slurm-conf-examples setup.py \
             -name __pycache__ -prune -o -print)
C_FILES = $(wildcard c_ext/*.[ch] spank/*.[ch] tests/fuzz/c/*.c)
# That each fuzz target is run.
SECONDS ?= 600

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

deps: ## install missing Debian packages (debian-packages.txt), start no services
	@tools/install-debian-packages debian-packages.txt

venv: $(VENV)/installed ## the virtual environment, with this checkout installed

test: venv ## run the tests; ARGS go to pytest
	@$(BIN)/pytest $(AT_ONCE) $(ARGS)

test-quick: venv ## those that need no daemons
	@$(BIN)/pytest $(AT_ONCE) -m 'not (slurm or hdfs or kerberos or torch or faults or attacks or simulations)' $(ARGS)

demo: venv ## cold start against warm start on a local Slurm cluster
	@$(BIN)/bootseer dev demo $(ARGS)

demo-hdfs: venv ## the same with a checkpoint in a local HDFS
	@$(BIN)/bootseer dev demo --hdfs $(ARGS)

bench: venv ## the measurements behind the documentation's figures
	@$(BIN)/bootseer dev bench $(ARGS)

bench-ckpt: venv ## checkpoints in HDFS, read and written
	@$(BIN)/bootseer dev bench-ckpt $(ARGS)

bench-image: venv ## a start from an image in a slow store, in every way
	@$(BIN)/bootseer dev bench-image $(ARGS)

bench-env: venv ## an environment on all nodes of a job, in every way
	@$(BIN)/bootseer dev bench-env $(ARGS)

bench-harm: venv ## starts to which BootSeer could do harm, with and without it
	@$(BIN)/bootseer dev bench-harm $(ARGS)

fsx: venv ## random operations on a checkpoint mount, for ten minutes
	@$(BIN)/bootseer dev fsx $(ARGS)

faults: venv ## the longer tests: daemons are killed, disks full, files damaged
	@$(BIN)/pytest $(ORDER) -m faults $(ARGS)

simulate: venv ## several mounts, failing stores and dying processes at random, for SECONDS (600)
	@BOOTSEER_SIMULATE_S=$(SECONDS) $(BIN)/pytest -m simulations $(ARGS)

fuzz: venv ## feed hostile input to all decoders, each for SECONDS (600); ARGS name some
	@$(BIN)/python tests/fuzz/run.py --seconds $(SECONDS) $(ARGS)

mutate: $(MUTATE)/installed ## change the code in small ways, and see that a test notices; ARGS="--count 200"
	@$(MUTATE)/bin/python tests/mutate/run.py $(ARGS)

attacks: venv ## a second user against root, other users and the node, on a real cluster
	@$(BIN)/pytest $(ORDER) -m attacks $(ARGS)

test-torch: $(TORCH)/installed ## checkpoints of PyTorch on a mount; fetches PyTorch, several GB
	@$(BIN)/pytest -m torch $(ARGS)

check: lint types contracts ## all three

lint: venv ## formatting and lint, Python and C
	@$(BIN)/ruff format --quiet --check
	@$(BIN)/ruff check --quiet
	@clang-format --dry-run -Werror $(C_FILES)

types: venv ## mypy --strict
	@$(BIN)/mypy

contracts: venv ## who may import whom
	@$(BIN)/lint-imports --no-cache

fmt: venv ## format Python and C
	@$(BIN)/ruff check --quiet --fix-only
	@$(BIN)/ruff format --quiet
	@clang-format -i $(C_FILES)

clean: ## remove all that was built, images and virtual environment included
	@rm -rf build dev/build $(VENV) *.egg-info dev/*.egg-info

.PHONY: help deps venv test test-quick demo demo-hdfs bench bench-ckpt bench-image bench-env bench-harm fsx faults attacks simulate fuzz mutate test-torch check lint types contracts fmt clean
.DELETE_ON_ERROR:

$(BIN)/pip: | deps
	@echo "making a virtual environment in $(VENV)"
	@$(OPEN) mkdir -p $(VENV) && test -O $(VENV)
	@$(OPEN) $(PYTHON) -m venv $(VENV)
	@$(OPEN) $(PIP) install setuptools wheel

# Dependencies are looked at again only when pyproject.toml changed. What setuptools leaves in
# build/ goes first, or removed modules would be installed again.
$(VENV)/installed: pyproject.toml $(SOURCES) | $(BIN)/pip deps
	@echo "installing this checkout into $(VENV)"
	@rm -rf build/lib* build/bdist* build/temp* dev/build
	@$(OPEN) $(PIP) install $(if $(filter pyproject.toml,$?),'.[dev]' ./dev,--no-deps --no-build-isolation . ./dev)
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
