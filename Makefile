# One word per job. `make train` and `make test` set everything up by themselves, in .venv, from a clean clone.

PYTHON ?= python3
RANKS ?= 2
JOBS ?= 2
TORCH_INDEX ?=

BIN := .venv/bin
PIP_FLAGS := --disable-pip-version-check
# Each file of tests runs on one process. One more process than JOBS, since ranks often wait for each other; twice as many
# where most tests wait.
COMPUTING := -n $(JOBS) --dist loadfile --no-loadscope-reorder
MIXED := -n $$(($(JOBS) + 1)) --dist loadfile --no-loadscope-reorder
WAITING := -n $$(($(JOBS) * 2)) --dist loadfile --no-loadscope-reorder
# What measures processor time runs alone.
ALONE := $(wildcard tests/rules/test_startup.py)
# Of what the source and the pages say, not of what runs: `make check`; some of them `make docs`.
PAGES := $(wildcard tests/rules/test_docs.py tests/rules/test_api.py)
RULES := $(filter-out $(ALONE) $(PAGES),$(wildcard tests/rules/test_*.py))
# The `lockstep` commands around training, and the examples: `make test-commands`. What pages show is in `make test`.
COMMANDS := tests/unit/cli $(filter-out tests/examples/test_pages.py,$(wildcard tests/examples/test_*.py))
# How ranks and nodes start, find each other, exchange messages, fail and restart: `make test-launch`.
LAUNCH := $(wildcard $(addprefix tests/ranks/test_,rendezvous.py collectives.py host_blocks.py elastic_restart.py joined.py \
	memory_growth.py faults.py exits.py preflight_of_ranks.py sweep_of_runs.py) \
	tests/hosts tests/unit/launch tests/unit/engines tests/unit/distributed/test_watch.py)
# The files with tests for machines with a GPU: `make test-gpu`. The others may need packages that such a machine lacks.
GPU := $(shell grep -rl --include="test_*.py" "pytest.mark.gpu" tests)
# What of JAX needs no torch: `make test-jax` runs it where there is none, and `make test` what proves the README.
JAX := $(wildcard tests/ranks/test_jax_*.py) $(shell find tests/unit tests/golden -name "test_jax_*.py")
JAX_PROMISES := tests/ranks/test_jax_exactness.py
# The seams are those of torch in `make test`, and those of JAX in `make test-jax`: there the cases of torch skip.
SEAMS := $(addprefix tests/ranks/test_,seams.py dqn_seams.py actor_critic_seams.py)
# What torch, JAX and equations in numpy compute, compared: `make test-parity`; what the README says of it, in `make test`.
PARITY := $(wildcard tests/parity/test_*.py)
PARITY_PROMISES := tests/parity/test_jax_policy_files.py

.PHONY: help setup train bench test test-commands test-jax test-parity test-launch test-isaac test-isaac-short test-suites test-ray test-trackers test-planted test-chaos test-hosts test-learning test-slow test-gpu check api dist docs format clean

help:  ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: .venv/.installed  ## Make .venv with everything pinned; quick when nothing changed. TORCH_INDEX=URL: where torch comes from.
	@$(BIN)/python -c 'from lockstep.launch.gpus import cpu_only_torch as ask; w = ask(); w and print("WARNING:", w)' >&2

train: setup  ## Train CartPole-v1 on 2 ranks until solved. RANKS=N: on N.
	@run=runs/cartpole-$$(date +%Y%m%d-%H%M%S); \
	$(BIN)/lockstep train cartpole --ranks $(RANKS) --run-dir $$run && \
	$(BIN)/python -c 'import json, sys; s = json.load(open(sys.argv[1]))["status"]; sys.exit(s != "solved" and f"make train: the run ended {s}, not solved")' $$run/summary.json && \
	printf '\nNext:\n  . .venv/bin/activate\n  lockstep evaluate %s --episodes 100\n  tensorboard --logdir runs\n' $$run

# Some environments forbid Python to keep what it compiled: a thousand short processes would then compile our modules again.
test test-commands test-jax test-parity test-launch: export PYTHONDONTWRITEBYTECODE :=
test: setup  ## Prove the promises of the README once, on torch and JAX: six minutes on two cores. Faults, restarts, hosts: test-launch.
	@code=0; \
	$(BIN)/python -m pytest $(MIXED) tests -k 'not (seams and jax)' $(patsubst %,--ignore=%,$(ALONE) $(RULES) $(PAGES) $(LAUNCH) $(COMMANDS) \
		$(filter-out $(JAX_PROMISES),$(JAX)) $(filter-out $(PARITY_PROMISES),$(PARITY))) || code=1; \
	$(BIN)/python -m pytest $(ALONE) || code=1; \
	exit $$code

test-jax: setup .venv-jax/.installed  ## Run the quick tests of JAX in an environment without torch.
	.venv-jax/bin/python -m pytest $(MIXED) $(JAX) $(SEAMS)

test-parity: setup  ## Torch and JAX compute the same, and what the papers' equations say: outputs, losses, gradient steps.
	$(BIN)/python -m pytest $(COMPUTING) $(PARITY)

test-commands: setup  ## The commands around training (sweeps, reports, jobs of clusters, logs, doctor, ...) and the examples: three minutes.
	$(BIN)/python -m pytest $(MIXED) $(COMMANDS) $(patsubst %,--ignore=%,$(JAX))

test-launch: setup  ## Prove the promises about faults, restarts, launchers and several machines: how ranks and nodes start, meet and fail.
	$(BIN)/python -m pytest $(WAITING) $(LAUNCH) $(patsubst %,--ignore=%,$(JAX))

test-planted: setup  ## Mutation tests: plant known bugs into copies of the source; a test must catch each. PLANTED=seam: those so named.
	$(BIN)/python -m pytest tests/planted -m planted -n $(JOBS) $(if $(PLANTED),-k '$(PLANTED)')

test-chaos: setup  ## Kill, stop and starve real runs, and see that nothing is lost and nothing hangs.
	$(BIN)/python -m pytest -m chaos

test-hosts: setup  ## Several hosts, made of network namespaces: everything about them, quick and not. Needs root and iproute2.
	$(BIN)/python -m pytest tests/hosts -m "hosts or not hosts"

test-learning: setup  ## Train until solved, many seeds.
	$(BIN)/python -m pytest -n $(JOBS) -m learning

test-slow: setup  ## Repeats of what `make test` proves once: by rank count, layout, launcher, variant; and long runs.
	$(BIN)/python -m pytest $(COMPUTING) -m slow

test-isaac: .venv-isaac/.installed  ## Real Isaac Lab, skrl, rl_games and rsl_rl on CPU ranks, in an environment of their own that stays.
	.venv-isaac/bin/python -m pytest -m isaac tests/isaac

test-isaac-short: .venv-isaac/.installed  ## Of test-isaac: two ranks of each trainer, and a rank that fails. Three minutes.
	.venv-isaac/bin/python -m pytest -m isaac_short tests/isaac

test-suites: .venv-suites/.installed  ## Real mjlab, EnvPool, gymnax, Brax and MuJoCo Playground on 1, 2 and 4 CPU ranks; rsl_rl, skrl and rl_games on mjlab; in an environment of their own that stays.
	.venv-suites/bin/python -m pytest -m suites tests/suites
	.venv-suites/bin/python -m pytest tests/unit/jax/test_jax_env_adapters.py

test-ray: .venv-ray/.installed  ## Ranks on real Ray clusters of several nodes and hosts on this machine, in an environment of their own that stays.
	.venv-ray/bin/python -m pytest -m ray tests/ray_cluster

test-trackers: .venv-trackers/.installed  ## Real Weights & Biases, offline, and MLflow with a server, in an environment of their own that stays.
	LOCKSTEP_TEST_MLFLOW=$(CURDIR)/.venv-trackers/bin/mlflow .venv-trackers/bin/python -m pytest -m slow -rs tests/unit/record/test_real_trackers.py

test-gpu: $(if $(GPU_PYTHON),,setup)  ## The tests that need a GPU; they skip without one. GPU_PYTHON=python3: by a Python that has torch for CUDA.
	XLA_PYTHON_CLIENT_PREALLOCATE=false PYTHONPATH=$(CURDIR)/src$(if $(PYTHONPATH),:$(PYTHONPATH)) $(or $(GPU_PYTHON),$(BIN)/python) -m pytest -m gpu -rs --durations=10 \
		-p no:benchmark -n 4 --dist worksteal $(GPU)

bench: setup  ## The same work by Lockstep and by other libraries, in turn: a table. Some hours. WORKS="NAME ...": some workloads.
	$(BIN)/lockstep bench $(WORKS)

check: setup  ## Format, lint, types, and the rules that tests can read from the source: layers, names, lengths.
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest $(RULES)

api: setup  ## Write docs/api.md, the page of all public names, from the docstrings.
	$(BIN)/python docs/api.py

dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2> /dev/null || date +%s)
dist: setup .venv-dist/.installed  ## Build wheel and sdist into dist/, and install the wheel into clean environments: Python 3.11 to 3.14, pip, uv.
	rm -rf build dist
	.venv-dist/bin/python -m build --no-isolation > dist.log 2>&1 || { cat dist.log; exit 1; }
	@rm -rf build dist.log && ls -l dist
	.venv-dist/bin/twine check --strict dist/*
	.venv-dist/bin/hadolint docker/Dockerfile
	LOCKSTEP_DIST=dist $(BIN)/python -m pytest -m slow -v -rs tests/installs

docs: setup .venv-docs/.installed  ## Build the site from the pages into site/, in English and Chinese. A dead link or an unlisted page fails.
	$(BIN)/python -m pytest $(PAGES)
	.venv-docs/bin/python docs/site/build.py
	$(BIN)/python -m pytest -m slow tests/rules/test_site.py

format: setup  ## Format the code and mend what the linter can mend.
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:  ## Remove environments, caches and builds; runs/ stays.
	rm -rf .venv .venv-* .bench build dist dist.log site test-artifacts .pytest_cache .ruff_cache src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A system without the venv module's own pip gets it from the pip that it has.
define new_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Lockstep needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12")'
	@test -x $(1)/bin/pip || $(PYTHON) -m venv $(1) || { $(PYTHON) -m venv --without-pip $(1) && $(PYTHON) -m pip --python $(1)/bin/python install pip; }
endef

.venv/.installed: requirements.lock pyproject.toml
	@echo 'Setting up .venv; the first time torch is downloaded, which takes a while.'
	$(call new_venv,.venv)
	$(BIN)/pip install $(PIP_FLAGS) -r requirements.lock $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	$(BIN)/pip install $(PIP_FLAGS) --quiet --no-deps --no-build-isolation -e .
	@touch $@

.venv-isaac/.installed: tests/isaac/install.sh tests/isaac/make_assets.py pyproject.toml
	PYTHON=$(PYTHON) tests/isaac/install.sh .venv-isaac
	@touch $@

# torch and JAX have the versions of the locks: a result has the same bits as with `make setup`.
.venv-ray/.installed: requirements.lock requirements-jax.lock pyproject.toml
	$(call new_venv,.venv-ray)
	.venv-ray/bin/pip install $(PIP_FLAGS) -c requirements.lock -c requirements-jax.lock $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		-e '.[torch,jax,ray,classic]' 'ray[tune]' pytest hypothesis
	@touch $@

# The package mlflow, in the requirements, has the server, which the extra leaves out.
.venv-trackers/.installed: tests/unit/record/tracker_requirements.txt pyproject.toml
	$(call new_venv,.venv-trackers)
	.venv-trackers/bin/pip install $(PIP_FLAGS) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		-r tests/unit/record/tracker_requirements.txt -e '.[torch,classic,wandb,mlflow]' pytest
	@touch $@

# rl-games asks for a psutil that is older than ours; what else it needs is in the requirements.
.venv-suites/.installed: tests/suites/requirements.txt tests/suites/link_menagerie.py pyproject.toml
	$(call new_venv,.venv-suites)
	.venv-suites/bin/pip install $(PIP_FLAGS) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r tests/suites/requirements.txt \
		-e '.[torch,jax,mjlab,envpool,gymnax,brax,playground]' pytest hypothesis
	.venv-suites/bin/pip install $(PIP_FLAGS) --no-deps rl-games==1.6.5
	.venv-suites/bin/python tests/suites/link_menagerie.py
	@touch $@

.venv-docs/.installed: requirements-docs.lock
	$(call new_venv,.venv-docs)
	.venv-docs/bin/pip install $(PIP_FLAGS) --quiet -r requirements-docs.lock
	@touch $@

# Only tools: Lockstep itself is installed from the wheel, elsewhere.
.venv-dist/.installed: requirements-dist.lock
	$(call new_venv,.venv-dist)
	.venv-dist/bin/pip install $(PIP_FLAGS) --quiet -r requirements-dist.lock
	@touch $@

.venv-jax/.installed: requirements-jax.lock pyproject.toml
	$(call new_venv,.venv-jax)
	.venv-jax/bin/pip install $(PIP_FLAGS) -r requirements-jax.lock
	.venv-jax/bin/pip install $(PIP_FLAGS) --quiet --no-deps --no-build-isolation -e .
	@touch $@
