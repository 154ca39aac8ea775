# Every target makes the virtual environment it needs; nothing has to be activated.
SHELL := bash
.DEFAULT_GOAL := help

PYTHON ?= python3
EXTRAS ?= dev,kernels,torch,chess-pixels
RUN_EXTRAS ?= cli,collect,envs,kernels
BENCH_EXTRAS ?= atari,cli,envs,kernels,monitor,mujoco
# The last four are what gymnax imports.
BENCH_PEERS ?= stable-baselines3 tianshou torchrl torch envpool==1.2.5 matplotlib rich "jax<0.12" flax seaborn six
# What these ask for is not installed: BBRL wants a dozen libraries that its agents do not import, and gymnax a Gymnasium
# before 1.4, with which everything else would be measured.
BENCH_PEERS_ALONE ?= bbrl==1.0.1 gymnax==1.0.1

VENV := .venv
BENCH_VENV := .venv-bench
# Apart from the others: it wants a tensordict of its own version.
TORCHRL_VENV := .venv-torchrl
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# -qq: errors are shown, warnings are not.
PIP_FLAGS := -qq --disable-pip-version-check
# What an installed shoal is made of that Python does not read anew each time.
BUILT_FROM := pyproject.toml constraints.txt hatch_build.py $(wildcard csrc/*)

# Tests start hundreds of processes: where bytecode is not to be kept, each of them would compile shoal anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: $(VENV)/.runs ## collect 200,000 steps of 64 CartPoles into build/, and print where they are and the speed
	@$(BIN)/shoal collect CartPole-v1 --num-envs 64 --steps 200_000 --out build/cartpole --overwrite

# What the compiled part stands for. The rest of shoal does not know which of the two it runs on.
PURE_TESTS := tests/engines tests/laws tests/test_nan_watch.py tests/test_pool.py tests/test_quick.py

# pytest exits with 5 when no test is marked slow, which is fine.
.PHONY: test
test: $(VENV)/.installed ## run the fast tests, those of the engines without compiled code, then the slow ones
	@$(PYTEST) -m "not slow" -n 2
	@SHOAL_PURE_PYTHON=1 $(PYTEST) -m "not slow" -n 2 -q --ignore tests/engines/kernel --ignore tests/engines/native $(PURE_TESTS)
	@timeout -k 10 1500 $(PYTEST) -m slow -n 2 || { code=$$?; [ $$code -eq 5 ] || exit $$code; }

# Checked where there is a compiler: what it builds is built by hatch_build.py.
C_FLAGS := -fsyntax-only -std=gnu11 -Wall -Wextra -Werror -Wno-missing-field-initializers -Wno-cast-function-type
INCLUDES := 'import numpy, sysconfig; print("-isystem", sysconfig.get_path("include"), "-isystem", numpy.get_include())'

.PHONY: check
check: $(VENV)/.installed ## lint, formatting, types, spelling
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/codespell
	@! command -v cc > /dev/null || cc $(C_FLAGS) $$($(BIN)/python -c $(INCLUDES)) csrc/*.c

.PHONY: bench
bench: $(BENCH_VENV)/.installed ## compare with peers, in a virtual environment of its own
	@$(BENCH_VENV)/bin/python benchmarks/python_envs.py $(BENCH_ARGS)

.PHONY: bench-compiled
bench-compiled: $(BENCH_VENV)/.installed ## compare compiled envs with EnvPool and others
	@$(BENCH_VENV)/bin/python benchmarks/compiled_envs.py $(BENCH_ARGS)

.PHONY: bench-native
bench-native: $(BENCH_VENV)/.installed ## compare MuJoCo robots and Atari games with EnvPool's
	@$(BENCH_VENV)/bin/python benchmarks/mujoco_envs.py $(BENCH_ARGS)
	@$(BENCH_VENV)/bin/python benchmarks/atari_envs.py $(BENCH_ARGS)

.PHONY: bench-bbrl
bench-bbrl: $(BENCH_VENV)/.installed ## compare env agents with BBRL's, data included
	@$(BENCH_VENV)/bin/python benchmarks/bbrl_agents.py $(BENCH_ARGS)

.PHONY: bench-torchrl
bench-torchrl: $(VENV)/.installed $(TORCHRL_VENV)/.installed ## compare envs of TensorDicts, transforms included, with TorchRL's
	@$(BIN)/python benchmarks/torchrl_envs.py --peer $(TORCHRL_VENV)/bin/python $(BENCH_ARGS)
	@$(BIN)/python benchmarks/torchrl_transforms.py --peer $(TORCHRL_VENV)/bin/python $(BENCH_ARGS)

.PHONY: soak
soak: $(VENV)/.installed ## a million steps with a thousand faults; fails if a row is lost, torn or told twice (minutes)
	@$(BIN)/python benchmarks/soak.py $(SOAK_ARGS)

.PHONY: docs
docs: $(VENV)/.installed ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir site

# A virtual environment, and what pip is to install there.
define install
@echo "installing into $(1)"
@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
@$(1)/bin/python -m pip install $(PIP_FLAGS) -U pip
@$(1)/bin/python -m pip install $(PIP_FLAGS) -c constraints.txt $(2)
endef

# Enough for the main job, and a fraction of what the tests need.
$(VENV)/.runs: $(BUILT_FROM)
	$(call install,$(VENV),-e ".[$(RUN_EXTRAS)]")
	@touch $@

$(VENV)/.installed: $(BUILT_FROM)
	$(call install,$(VENV),-e ".[$(EXTRAS)]")
	@touch $(VENV)/.runs $@

$(BENCH_VENV)/.installed: $(BUILT_FROM)
	$(call install,$(BENCH_VENV),-e ".[$(BENCH_EXTRAS)]" $(BENCH_PEERS))
	@$(BENCH_VENV)/bin/python -m pip install $(PIP_FLAGS) --no-deps $(BENCH_PEERS_ALONE)
	@touch $@

$(TORCHRL_VENV)/.installed: constraints.txt
	$(call install,$(TORCHRL_VENV),torchrl==0.14.1 "tensordict<0.15" gymnasium chess)
	@touch $@
