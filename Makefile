# Every target sets up .venv from the pinned requirements when it is missing or older than they are.
# What they promise: docs/ and `recorder --help`. `make` lists them in this order, in 80 columns.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help

# Tests start hundreds of processes; each would compile every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo up test test-api test-dagster test-postgresql test-browser test-faults system check format faults fuzz mutation bench soak notebooks requirements

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' \
		| while IFS="$$(printf '\t')" read -r target what; do printf '%-17s%s\n' "$$target" "$$what"; done

install: $(INSTALLED) ## set up .venv, nothing else

demo: $(INSTALLED) ## do all steps once; DATA=folder takes real recordings
	$(BIN)/python -m recorder.cli demo $(if $(DATA),--data "$(DATA)")

up: $(INSTALLED) ## serve until Ctrl-C; DATA=folder, default ./recorder-data
	exec $(BIN)/python -m recorder.cli up $(if $(DATA),--data "$(DATA)")

# Tests of the HTTP interface, of Dagster, of Chromium and of whole deployments have targets of their own: each stays
# below ten minutes.
INTERFACE := tests/api tests/spec
DAGSTER := tests/pipelines
BROWSER := tests/live tests/capture
DEPLOYMENTS := tests/end_to_end tests/fuzz
FAULTS := tests/faults
OTHERS := $(INTERFACE) $(DAGSTER) $(BROWSER) $(DEPLOYMENTS) $(FAULTS)
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# More processes than processors run already: threads of theirs would only take turns, for an eighth of the time.
IN_PROCESS := test test-api test-dagster test-postgresql test-browser
$(IN_PROCESS): export POLARS_MAX_THREADS := 1
$(IN_PROCESS): export TOKIO_WORKER_THREADS := 1
$(IN_PROCESS): export OPENBLAS_NUM_THREADS := 1
$(IN_PROCESS): export OMP_NUM_THREADS := 1

test: $(INSTALLED) ## run the tests, on SQLite; TESTS=tests/sealing runs some
	$(PYTEST) $(or $(TESTS),$(OTHERS:%=--ignore=%)) --engine sqlite $(ARGS)

test-api: $(INSTALLED) ## run the tests of the HTTP interface and of the spec
	$(PYTEST) $(or $(TESTS),$(INTERFACE)) --engine sqlite $(ARGS)

test-dagster: $(INSTALLED) ## run the tests of the Dagster assets, on SQLite
	$(PYTEST) $(or $(TESTS),$(DAGSTER)) --engine sqlite $(ARGS)

test-postgresql: $(INSTALLED) ## run the tests that need a database on PostgreSQL
	$(PYTEST) $(or $(TESTS),$(DEPLOYMENTS:%=--ignore=%) $(FAULTS:%=--ignore=%)) --engine postgresql $(ARGS)

test-browser: $(INSTALLED) ## run the tests of capture and live replays, which drive Chromium
	RECORDER_FAULT_VARIANTS=3 $(PYTEST) $(or $(TESTS),$(BROWSER)) --engine sqlite $(ARGS)

test-faults: $(INSTALLED) ## kill processes, stop stores: a part of `make faults`
	$(PYTEST) $(or $(TESTS),$(FAULTS)) $(ARGS)

system: $(INSTALLED) ## test whole deployments: examples, notebooks, random requests
	$(PYTEST) $(or $(TESTS),$(DEPLOYMENTS)) $(ARGS)

check: $(INSTALLED) ## check format, lint, import rules and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(INSTALLED) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

faults: $(INSTALLED) ## kill processes, cut the power; KILLS=300 EVENTS=1000000 …
	RECORDER_FAULT_KILLS=$(or $(KILLS),300) RECORDER_FAULT_EVENTS=$(or $(EVENTS),1000000) \
		RECORDER_FAULT_POWER_CUTS=$(or $(CUTS),200) RECORDER_FAULT_RESULTS=$(RESULTS) \
		RECORDER_FAULT_STRIDE=1 RECORDER_FAULT_EXPORT_KILLS=100 RECORDER_FAULT_EXPORT_RUN_KILLS=10 RECORDER_FAULT_PURGE_KILLS=200 \
		RECORDER_FAULT_LAKE_KILLS=200 RECORDER_FAULT_RECORD_KILLS=30 RECORDER_FAULT_MIGRATION_KILLS=50 RECORDER_FAULT_PEER_KILLS=30 RECORDER_FAULT_POSTGRES_RESTARTS=200 \
		RECORDER_FAULT_STOPS=$(or $(STOPS),5) RECORDER_FAULT_SEAL_KILLS=$(or $(SEAL_KILLS),200) \
		RECORDER_FAULT_SEAL_RUNS=6 RECORDER_FAULT_SEAL_SESSIONS=200 \
		RECORDER_FAULT_UPS=$(or $(UPS),20) RECORDER_FAULT_UPLOADS=$(or $(UPLOADS),2000) \
		RECORDER_FAULT_CLOCKS=$(or $(CLOCKS),500) RECORDER_FAULT_SUBJECTS=$(or $(SUBJECTS),12) \
		RECORDER_FAULT_SESSIONS=$(or $(SESSIONS),2000) RECORDER_FAULT_AWAY_S=$(or $(AWAY),600) \
		RECORDER_FAULT_CONTENTS=$(or $(CONTENTS),10000) RECORDER_FAULT_LAG_S=5 RECORDER_FAULT_VARIANTS=20 RECORDER_FAULT_LIVE_KILLS=20 \
		RECORDER_FAULT_RECOVERIES=$(or $(RECOVERIES),60) \
		$(BIN)/python -m pytest tests/faults tests/live tests/sealing/test_sealing_faults.py --timeout 0 --capture no $(ARGS)

fuzz: $(INSTALLED) ## send random requests; CASES=100000 EXAMPLES=2000
	RECORDER_FUZZ_EXAMPLES=$(or $(EXAMPLES),2000) $(BIN)/python -m pytest tests -m hypothesis --ignore=tests/end_to_end --ignore=tests/fuzz --timeout 0 $(ARGS)
	RECORDER_FUZZ_CASES=$(or $(CASES),100000) $(BIN)/python -m pytest tests/fuzz --timeout 0 --capture no $(ARGS)

mutation: $(INSTALLED) ## check that tests notice broken code; ARGS="--seconds 500"
	$(BIN)/python -m tests.mutation $(ARGS)

notebooks: $(INSTALLED) ## run the notebooks and store their outputs; ARGS=file for one
	$(BIN)/python notebooks/run.py $(ARGS)

bench: $(INSTALLED) ## measure speed on this machine; ARGS=erasure for one subject
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(INSTALLED) ## load a deployment and compare over time; MINUTES=30
	$(BIN)/python -m benchmarks.soak --minutes $(or $(MINUTES),30) --sessions $(or $(SESSIONS),10000)

# Pins stay as they are unless an .in file or pyproject.toml asks for something else; UPGRADE=--upgrade lifts them.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-strip-extras \
	--custom-compile-command "make requirements" $(UPGRADE) --extra service pyproject.toml

requirements: $(INSTALLED) ## pin requirements/*.txt; UPGRADE=--upgrade takes new releases
	$(COMPILE) -o requirements/service.txt
	$(COMPILE) --extra live requirements/dev.in -c requirements/service.txt -o requirements/dev.txt

# A name may be there without working (version managers), so each is tried.
$(INSTALLED): requirements/dev.txt pyproject.toml
	@for python in python3.11 python3.12 python3.13 python3; do \
		$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
			&& exec $$python -m venv $(VENV); \
	done; echo "Python 3.11 or newer with venv is needed (Debian: apt-get install python3-venv)." >&2; exit 1
	@echo "Installing the pinned packages into $(VENV); the first time this takes a few minutes." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
