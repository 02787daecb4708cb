# Turnwise. `make` lists what there is; everything else needs only Python 3.11 or newer, its venv module, and a network
# the first time. ARGS passes arguments on: make test ARGS="tests/deploy -x".

# What is run needs less than what checks and measures it.
RUN := ./deploy/toolchain.sh run .venv/bin/python
DEV := ./deploy/toolchain.sh dev
PYTHON := $(DEV) .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help run keycloak opensearch test test-busy test-fast test-proxy test-late check wheel-test coverage mutants format lock bench bench-short bench-micro bench-turn bench-headline bench-ladder bench-matrix bench-acks bench-verdict bench-kpi bench-ingest bench-growth bench-memory bench-strangers bench-doors bench-langgraph bench-page bench-scale bench-tracing bench-truth doors-clients phoenix profile eval chaos chaos-full chaos-mixed fuzz clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: ## start everything on this machine: Postgres, the mock model, the services; Ctrl-C stops
	@$(RUN) -m turnwise run $(ARGS)

keycloak: ## run Keycloak with users to sign in as (needs Java and Maven); Ctrl-C stops
	@$(RUN) -m deploy.keycloak $(ARGS)

opensearch: ## run an OpenSearch node for knowledge flow (needs a JDK and Maven); Ctrl-C stops
	@$(RUN) -m deploy.opensearch $(ARGS)

test: ## run the tests side by side: what pip brings, and Chromium's where it is; TURNWISE_REQUIRE=all runs them all
	@$(PYTHON) -m pytest -n auto $(ARGS)

test-busy: ## the same five times, beside a process that computes on each core and one that writes to the disk
	@$(PYTHON) -m tests.busy --times 5 $(MAKE) test

test-fast: ## run the tests that start no server nor any other program, in a minute or so
	@$(PYTHON) -m pytest -n logical -m "not servers" $(ARGS)

test-proxy: ## what clients see of the service, of three instances behind HAProxy; ARGS="--behind nginx tests/integration"
	@$(PYTHON) -m pytest -n auto --behind haproxy $(or $(ARGS),tests/integration)

test-late: ## the tests of the page, with each request that it makes to the service a second late
	@$(PYTHON) -m pytest -n auto --late 1 $(or $(ARGS),tests/browser)

check: ## format, lint, types, import contracts, the pages' JavaScript, the project's own checks, side by side
	@$(PYTHON) -m tests.checks

wheel-test: ## install the wheel into an empty environment, measure it, start it in an empty folder and ask
	@$(PYTHON) -m tests.wheel $(ARGS)

coverage: ## branch coverage of what must not lose a turn, by its tests alone
	@$(PYTHON) -m tests.coverage_gate $(ARGS)

mutants: ## the planted mistakes that tests must catch; ARGS="fleet lease" those with these words
	@$(PYTHON) -m tests.mutants $(ARGS)

format: ## format the code and repair what the linter can
	@$(DEV) .venv/bin/ruff format .
	@$(DEV) .venv/bin/ruff check --fix .

lock: ## resolve the dependencies again into uv.lock (ARGS=--upgrade takes newer ones)
	@./deploy/toolchain.sh uv lock $(ARGS)

bench: ## the load test of this release, on this machine
	@$(PYTHON) -m tests.bench.bench $(ARGS)

bench-short: ## the same, short: what .ci/run does
	@$(PYTHON) -m tests.bench.bench --short $(ARGS)

bench-micro: ## what the smallest pieces cost
	@$(PYTHON) -m tests.bench.micro $(ARGS)

bench-turn: ## CPU of one turn beside other ways to serve it; a quarter of an hour
	@$(PYTHON) -m tests.bench.turn $(ARGS)

bench-headline: ## the figures by which this release is known, in one run of ten minutes; ARGS=--short for little load
	@$(PYTHON) -m tests.bench.headline $(ARGS)

bench-ladder: ## what each layer of a turn costs, from an echo to a rerank
	@$(PYTHON) -m tests.bench.ladder $(ARGS)

bench-matrix: ## what each switch of the bench configuration does to a turn
	@$(PYTHON) -m tests.bench.matrix $(ARGS)

bench-acks: ## how long an acknowledgement waits for the disk; ARGS="--directory DIR" for another one than this
	@$(PYTHON) -m tests.bench.acks $(ARGS)

bench-verdict: ## make each cause the bottleneck in turn, and ask the service who bounds it; ARGS=--short for seven of them
	@$(PYTHON) -m tests.bench.verdict $(ARGS)

bench-kpi: ## what watching costs: with it and without, scraped and unscraped
	@$(PYTHON) -m tests.bench.kpi_cost $(ARGS)

bench-ingest: ## what 200 MB of uploads cost, stage by stage, and how much memory; twenty minutes; ARGS=--short for 20 MB
	@$(PYTHON) -m tests.bench.ingest $(ARGS)

bench-growth: ## what a search costs at 10,000 to 300,000 chunks, and beside an upload, on both engines; half an hour
	@$(PYTHON) -m tests.bench.growth $(ARGS)

bench-memory: ## what answers, uploads and 1,000 clients take in memory, and what is given back; ARGS=--short for less
	@$(PYTHON) -m tests.bench.bounded $(ARGS)
	@$(PYTHON) -m tests.bench.memory

bench-strangers: ## what 200 slow readers and 5,000 idle sockets cost the others; ARGS=--short for fewer
	@$(PYTHON) -m tests.bench.strangers $(ARGS)

bench-doors: ## CPU of a turn through each door beside the native WebSocket; ARGS=--short for one round
	@$(PYTHON) -m tests.bench.doors $(ARGS)

bench-langgraph: ## runs of LangGraph's API beside `langgraph dev`, on the same graph; ten minutes; ARGS=--short for two
	@$(PYTHON) -m tests.bench.langgraph $(ARGS)

bench-page: ## tasks that hold the chat page up with 5,000 conversations, and its memory over 200 turns; ARGS=--short for 40
	@$(PYTHON) -m tests.bench.page $(ARGS)

bench-scale: ## what bounds 1 to 1,000 workers, computed from measured parts, in two minutes; ARGS=--twice compares two runs
	@$(PYTHON) -m tests.bench.scale $(ARGS)

bench-tracing: ## what traces of turns cost: sent to a collector, to nobody, and none
	@$(PYTHON) -m tests.bench.tracing $(ARGS)

bench-truth: ## each KPI line of one run beside what clients, relays, /proc and Postgres say; ARGS=--short for few clients
	@$(PYTHON) -m tests.bench.truth $(ARGS)

doors-clients: ## LiteLLM's proxy, llm and the MCP inspector at our doors, unmodified; ARGS="--only llm"
	@$(PYTHON) -m tests.doors.clients $(ARGS)

phoenix: ## a turn of Rico in Arize Phoenix, its spans against the turn's ledger; the first run downloads 500 MB
	@$(PYTHON) -m tests.phoenix $(ARGS)

profile: ## where the CPU of a turn goes: flame graph profile.svg and tables, by phase and library
	@$(PYTHON) -m tests.bench.profile $(ARGS)

eval: ## how well search finds, on the index of the Python manual; its first run embeds for minutes; ARGS=--short
	@$(PYTHON) -m tests.eval $(ARGS)

chaos: ## break Postgres, disk, network and processes under load; what clients were told against what is stored
	@$(PYTHON) -m tests.chaos --short $(ARGS)

chaos-full: ## the same with repeats and the bounds as published; half an hour, on a machine that does nothing else
	@$(PYTHON) -m tests.chaos --full $(ARGS)

chaos-mixed: ## faults of every kind at random among 150 clients and strangers for ten minutes; ARGS=--short for 45 s
	@$(PYTHON) -m tests.chaos.mixed $(ARGS)

fuzz: ## search for inputs that break a promise, ten minutes a test; ARGS="--seconds 60", --seed runs one again
	@$(PYTHON) -m tests.fuzz $(ARGS)

clean: ## remove what can be made again; data in .turnwise stays
	rm -rf tests/agui/node_modules tests/agui/build tests/page/node_modules tests/page/build
	rm -rf tests/langgraph/node_modules tests/langgraph/build tests/langgraph/threads/node_modules tests/langgraph/threads/build
	rm -rf .venv .tools .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
