# On a machine with nothing but Python 3.11: `make demo` shows berth at work, `make test` runs every test.
# Each makes .venv once and reuses it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Four workers for two cores, since live tests wait; tests/conftest.py puts the longest files first.
SPREAD := -n 4 --dist loadfile --no-loadscope-reorder
FAST := -m "not slow and not soak and not gpu"
TORCH := $(addprefix tests/unit/,benchmarks plan testing train zoo)# packages whose tests import torch
WAITING := tests/live $(addprefix tests/unit/,cli live network workload)# the first three for disks and controllers
unexport PYTHONDONTWRITEBYTECODE # some images set it: each process would compile the sources again
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

# Small tests that walk through the kernels and end within minutes interpreted; the names are of those that would not.
unit = $(patsubst %,tests/unit/$(1)/test_%.py,$(2))
TOO_LONG := rounds_no_longer rounds_that endless same_stream wrong_remaining has_sunk too_soon delay_timers_again \
  without_preemption every_policy woken_at_once microsecond every_second for_ever lstm cold_rows_age by_probability true_probabilities law_of_zipf promises without_memory is_compiled_only
INTERPRETED := $(FAST) -k "not ($(shell echo $(TOO_LONG) | sed 's/ / or /g'))" \
  $(call unit,schedule,held_places kinds waiting victims regressions lwf places policies dally berth_policy \
    gain_values move_values lookahead_values place_choice) \
  $(call unit,simulate,quotas faults network_values metrics_values heap) \
  $(call unit,network,flow collectives sharing iteration) \
  $(call unit,plan,provision stage exact objective_simulate) \
  $(call unit,train,index state decay table table_edges small_tiers admission hashing data) \
  $(call unit,train/servers,codec routing request_queue tickets)

.PHONY: help demo test kernels fast-torch fast-live fast-rest test-gpu check soak coverage mutants lint lint-web format docs docs-plan docs-waiting papers profiles clean bench bench-page bench-network bench-network-packets \
	bench-simulate bench-policies bench-waiting bench-types bench-one-job bench-plan bench-plan-learned bench-plan-truth bench-plan-stages bench-plan-methods bench-train bench-train-modes bench-tables bench-train-peers bench-live bench-dashboard

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("berth needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing berth into $(VENV) (once)"
	@start=$$(date +%s); $(PIP_INSTALL) '.[live,train]' && echo $$(($$(date +%s) - start)) > $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing berth and its development tools into $(VENV) (once)"
	@$(PIP_INSTALL) '.[dev]'
	@touch $@ $(VENV)/.core

demo: $(VENV)/.core ## a tour of two to three minutes
	@$(BIN)/python examples/demo.py

test: $(VENV)/.dev ## every test, lint and types
	@$(MAKE) --no-print-directory -j 2 lint lint-web kernels
	@$(PYTEST) $(SPREAD)

kernels: $(VENV)/.dev # compiled once, or each worker of the tests would compile the same
	-@$(BIN)/berth simulate generate:jobs=50 --cluster 2x2x4 --policy berth --policy dally --policy srtf --congestion 5 >/dev/null
	-@$(BIN)/berth plan ctrdnn-8 --devices cpu,T4 --throughput 100k/s >/dev/null
	-@$(BIN)/berth train ctrdnn-8 --batch 64 --steps 2 --servers 1 >/dev/null 2>&1

check: $(VENV)/.dev ## lint, types, layers and the fast tests: under a minute
	@$(MAKE) --no-print-directory -j 4 --output-sync lint fast-torch fast-live fast-rest

# Each collects its own part of the tests only, and nothing passes between them.
fast-torch: $(VENV)/.dev
	@$(PYTEST) $(FAST) $(TORCH)

fast-live: $(VENV)/.dev
	@$(PYTEST) $(FAST) $(WAITING)

fast-rest: $(VENV)/.dev
	@$(PYTEST) $(FAST) tests $(addprefix --ignore=,$(TORCH) $(WAITING))

soak: $(VENV)/.dev ## the property tests with many more cases
	@$(PYTEST) $(SPREAD) -m soak

test-gpu: $(VENV)/.dev ## training on a CUDA, XPU or MPS device; skips those that are not here
	@$(PYTEST) -m gpu -vv -rs tests/unit/train

coverage: $(VENV)/.dev ## lines of src that tests run, in child processes too, kernels interpreted; some half an hour, fails below 90 %
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest $(SPREAD)
	@PYTHONPATH=tests $(BIN)/coverage run -m pytest -p interpreted -W ignore::RuntimeWarning $(INTERPRETED)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

mutants: $(VENV)/.dev ## change the sources of three packages a little, many times, and list what no test notices
	@for package in schedule plan tables; do nice -n 19 $(BIN)/python tests/mutants.py $$package; done

lint: $(VENV)/.dev ## ruff, mypy --strict, import layers, retired words
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/voice_lint.py

TSC = npx --yes --package typescript@5.9.3 tsc
lint-web: ## the types of the dashboard's JavaScript (needs Node; downloads the TypeScript compiler once)
	@if ! command -v npx >/dev/null; then why="there is no Node (npx)"; \
	elif ! $(TSC) --version >/dev/null 2>&1; then why="npx can't download the TypeScript compiler"; \
	else $(TSC) -p tools/tsconfig.json; exit; fi; \
	if [ -n "$$BERTH_NO_SKIPS" ]; then echo "lint-web: skipped, but BERTH_NO_SKIPS is set: $$why" >&2; exit 1; fi; \
	echo "lint-web: skipped, $$why"

format: $(VENV)/.dev ## let ruff fix what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.dev ## every benchmark, an hour on two free cores; writes docs/performance.md, fails if a bar is missed
	@$(BIN)/python benchmarks/bench.py

bench-page: $(VENV)/.dev ## write docs/performance.md again from the stored results of the last benchmarks
	@$(BIN)/python benchmarks/page.py

bench-network: $(VENV)/.dev ## the network model against measured step times and contention; shares of links
	@held=0; $(BIN)/python benchmarks/network.py || held=1; \
	$(BIN)/python benchmarks/contention.py || held=1; \
	$(BIN)/python benchmarks/sharing.py || held=1; exit $$held

bench-network-packets: $(VENV)/.dev ## the network model against packets in ns-3 (Debian: g++ libns3-dev); some ten minutes, writes docs/design/network-packets.md
	@$(BIN)/python benchmarks/ns3_study.py

bench-simulate: $(VENV)/.dev ## jobs per CPU-second of the simulator, against its bars
	@$(BIN)/python benchmarks/simulate.py

bench-policies: $(VENV)/.dev ## the default policy against every other, whatever is known of the jobs; some five minutes
	@$(BIN)/python benchmarks/contest.py

bench-waiting: $(VENV)/.dev ## berth's rules about places against delay scheduling, over load, congestion and mix
	@$(BIN)/python benchmarks/policies.py

bench-types: $(VENV)/.dev ## gangs that choose among device types on mixed clusters, against those that take what is free
	@$(BIN)/python benchmarks/device_types.py

bench-one-job: $(VENV)/.dev ## shape, place and time chosen together, against the best fixed shape per job
	@$(BIN)/python benchmarks/one_job.py

bench-plan: $(VENV)/.dev ## plans evaluated and proven, against their bars
	@$(BIN)/python benchmarks/plan.py

bench-plan-learned: $(VENV)/.dev ## the learned searches against the optimum; hours
	@$(BIN)/python benchmarks/bench.py plan-learned

bench-plan-truth: $(VENV)/.dev ## predicted against measured steps of real trainings on this machine; writes docs/plan-truth.md
	@$(BIN)/python benchmarks/plan_truth.py --store

bench-plan-methods: $(VENV)/.dev ## all methods of planning compared, as docs/assets/plan-bench.html
	@$(BIN)/berth plan bench --seeds 1 --cpu-time 5s --force --html docs/assets/plan-bench.html

bench-train: $(VENV)/.dev ## training beside the dense part alone and plain torch, against its bars
	@held=0; $(BIN)/python benchmarks/train.py || held=1; \
	$(BIN)/python benchmarks/train_reading.py || held=1; \
	$(BIN)/python benchmarks/train_budget.py || held=1; exit $$held

bench-plan-stages: $(VENV)/.dev ## stages of plans with unequal replicas, predicted and measured; a minute
	@$(BIN)/python benchmarks/plan_stages.py

bench-train-modes: $(VENV)/.dev ## all training modes with one of two workers at a tenth of its speed; some three minutes
	@$(BIN)/python benchmarks/train_modes.py

bench-tables: $(VENV)/.dev ## sparse tables beside torch and plain Python, and in servers
	@$(BIN)/python benchmarks/tables.py
	@$(BIN)/python benchmarks/servers.py

bench-train-peers: $(VENV)/.dev ## the same work by torchrec and TensorFlow (downloads them); onto the page as well
	@$(BIN)/python benchmarks/bench.py train-peers

bench-live: $(VENV)/.dev ## the live controller: passes, durable submissions, restarts, real short jobs
	@$(BIN)/python benchmarks/live.py

bench-dashboard: $(VENV)/.dev ## the dashboard in Chromium with 1,024 machines and 10,000 jobs, against its bars
	@$(BIN)/python benchmarks/dashboard.py

profiles: $(VENV)/.dev ## measure every model of the zoo on this machine again and store the layer profiles
	@$(BIN)/python benchmarks/profiles.py

docs: $(VENV)/.dev ## build the documentation into site/
	@$(BIN)/python docs/generate.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "documentation: site/index.html"

docs-plan: $(VENV)/.dev ## write docs/plan-sanity.md again: what the planner rents for known models
	@$(BIN)/python docs/plan_sanity.py

papers: $(VENV)/.dev ## the experiments of Dally, LWF and HeterPS by their shape, with our own figures; writes docs/papers.md
	@$(BIN)/python benchmarks/papers.py

docs-waiting: $(VENV)/.dev ## write docs/waiting.md again from the Philly trace: some half an hour
	@$(BIN)/python benchmarks/waiting_study.py

clean: ## remove what the other targets made
	rm -rf $(VENV) site demo-out .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks .coverage*
