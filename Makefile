# Every target sets up what it needs; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TORCHX := .venv-torchx
TORCH ?=
COMPAT := .venv-compat-$(TORCH)

JOB ?= jobs/digits.yaml
NODES ?= 1
GPUS ?= 1
ON ?=
ARGS ?=
SOAK_S ?= 600
FAULTS ?= 10
SEED ?= 0
REQUIRE ?=
ROOM ?=
N ?= 50
TESTS ?=
GPU_PYTHON ?=
WHEELS ?= wheelhouse
# Most tests wait, so there are more processes than cores. Each needs about 1 GiB.
PROCESSES ?= 3
pytest = $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadgroup --no-loadscope-reorder

include images/image.mk

# A second when nothing changed; an edit of train/ or fabric_train/ is in the image that it runs in.
build-if-possible = $(image-variables) FLAVOR=$$(docker info --format '{{json .Runtimes}}' \
  2>/dev/null | grep -q nvidia && echo cuda || echo cpu) $(BIN)/python images/build --if-possible

.PHONY: help setup run-local test claims soak mutants breaks compat gpu lint format lines bench chaos docs site recording release-check k8s clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST) | sort
	@echo "  variables: GPUS=2 NODES=1:3 ON=docker|local JOB=jobs/digits.yaml ARGS='-- --epochs=5' BASE_IMAGE=... REQUIRE=docker"

setup: $(READY) ## make the virtual environment in .venv

# torch first and by its exact version: asked for with the rest, pip may resolve another build of it.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is not there, or older than 3.11; fix: make PYTHON=python3.11 (or newer)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$$(grep -o 'torch==[0-9.]*' pyproject.toml)"
	$(BIN)/python -m pip install --quiet --editable '.[train,dev]'
	@touch $@
	@echo "ready: $(BIN)/launcher; try: make run-local GPUS=2"

run-local: $(READY) ## train jobs/digits.yaml here: in Docker if it is there, else as processes
	@[[ "$(ON)" == local ]] || $(build-if-possible)
	@$(BIN)/launcher run $(JOB) --nnodes $(NODES) --nproc-per-node $(GPUS) $(if $(ON),--on $(ON)) $(if $(IMAGE),--image $(IMAGE)) $(ARGS)

# Where a test belongs is its folder: claims/ and soak/ lie beside the quick tests of a room.
folders = $(shell find tests -type d -name $(1))
# Tests that need no image run all the same.
build-test-image = -@$(image-variables) FLAVOR=cpu $(BIN)/python images/build --if-possible

test: $(READY) ## run what is pure, and each capability once; REQUIRE=docker fails where that engine is missing
	$(build-test-image)
	REQUIRE=$(REQUIRE) $(pytest) $(ARGS)

claims: $(READY) ## show what README and the tables promise, by real processes, containers, hosts, pods and Slurm
	$(build-test-image)
	REQUIRE=$(REQUIRE) $(pytest) $(call folders,claims) $(ARGS)

soak: $(READY) ## run the rest, for an hour and more; SOAK_S=3600 looks an hour for nodes lost by mistake
	$(build-test-image)
	LAUNCHER_SOAK_S=$(SOAK_S) REQUIRE=$(REQUIRE) $(pytest) $(call folders,soak) $(ARGS)

mutants: $(READY) ## put N=50 random faults into ROOM=launcher/plan and print those that its tests miss; SEED=1
	@[[ -n "$(ROOM)" ]] || { printf 'error: which room?\n  fix: make mutants ROOM=launcher/plan\n' >&2; exit 2; }
	$(BIN)/python tests/mutants $(ROOM) --seed $(SEED) -n $(N) $(if $(TESTS),--tests $(TESTS)) $(ARGS)

breaks: $(READY) ## put deliberate faults into a copy, one by one, and print what no test catches; ARGS=NAME
	$(BIN)/python tests/breaks $(ARGS)

# pip's own settings say where torch comes from: PIP_INDEX_URL of CPU builds saves gigabytes.
$(COMPAT)/.ready:
	$(PYTHON) -m venv $(COMPAT)
	$(COMPAT)/bin/python -m pip install --quiet torch==$(TORCH)
	@touch $@

compat: $(READY) $(if $(TORCH),$(COMPAT)/.ready) ## run the smoke tests with another torch: TORCH=2.6.0
	@[[ -n "$(TORCH)" ]] || { printf 'error: which torch?\n  fix: make compat TORCH=2.6.0\n' >&2; exit 2; }
	COMPAT_PYTHON=$(CURDIR)/$(COMPAT)/bin/python $(BIN)/python -m pytest tests/compat tests/compat/soak $(ARGS)

# In the environment that is given: a machine with GPUs may have a torch of its own, and no network.
gpu: $(if $(GPU_PYTHON),,$(READY)) ## run what needs a GPU and write docs/gpu.md; GPU_PYTHON=python3 WHEELS=DIR, GPU_DRY=1
	WHEELS=$(WHEELS) $(or $(GPU_PYTHON),$(BIN)/python) -m tests.gpu $(ARGS)

lint: $(READY) ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lines: ## count the lines of Python in each room of launcher/, and in the other packages
	@for room in launcher/*/ launcher fabric_train train; do [[ ! -d $$room || $$room == *__pycache__/ ]] || \
	  printf '%7d  %s\n' $$(find $$room -name '*.py' -exec cat {} + | wc -l) $$room; done

# In an environment of its own: TorchX holds back packages that this project needs newer.
$(TORCHX)/.ready:
	$(PYTHON) -m venv $(TORCHX)
	$(TORCHX)/bin/python -m pip install --quiet torchx
	@touch $@

bench: $(READY) $(TORCHX)/.ready ## measure against the peers; ARGS="NAME --record" puts rows into docs/benchmark-results.md
	TORCHX=$(TORCHX)/bin/torchx $(BIN)/python -m benchmarks $(ARGS)

chaos: $(READY) ## train in containers under FAULTS=10 random failures; the weights stay the same
	@$(build-if-possible)
	$(BIN)/python -m benchmarks.chaos --faults $(FAULTS) --seed $(SEED) --svg chaos.svg $(ARGS)

docs: $(READY) ## write the pages, pictures and the schema that are made from the sources
	$(BIN)/python docs/generate.py

site: docs ## build the documentation as a site in build/site; a broken link fails
	$(BIN)/mkdocs build --strict

recording: $(READY) ## record docs/recording.svg, on a machine that does nothing else
	$(BIN)/python docs/record.py

release-check: $(READY) ## build wheel and sdist, and try them where nothing else is installed
	REQUIRE=index $(BIN)/python -m pytest tests/claims/test_install.py tests/soak/test_install.py

k8s: $(READY) ## write the manifests of k8s/ (IMAGE=registry.example/me/fabric-train:1)
	$(BIN)/python k8s/generate.py $(IMAGE)

clean: ## remove what make made here, but not runs/
	rm -rf $(VENV) $(TORCHX) .venv-compat-* build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .image
