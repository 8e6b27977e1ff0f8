# Every target sets up what it needs first; a second call finds it done. See tools/bootstrap.py.
#   make run ARGS="--tcp 127.0.0.1:9000"    make test ARGS="-k recovery"    make PYTHON=python3.12 test

PYTHON ?= python3
BIN := .venv/bin
BOOTSTRAP := $(PYTHON) tools/bootstrap.py
LINTED := $(wildcard src tests tools benchmarks examples setup.py)

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help run demo test bench lint format soak clean env dev-env pipeline-env compile java servers browser

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

# Spark is set up for the pipeline alone: ARGS="--no-pipeline" does without.
RUN_PIPELINE := $(if $(findstring --no-pipeline,$(ARGS)),,pipeline-env)

run: $(RUN_PIPELINE) compile ## start broker and pipeline on this machine, data in ./penstock-data
	@$(BIN)/penstock serve --pipeline penstock-pipeline $(ARGS)

demo: pipeline-env compile ## send a load over all five protocols, show the tables made of it; in ./penstock-demo
	@$(BIN)/penstock demo $(ARGS)

test: lint compile java servers browser ## lint, all tests, and the tests of compiled modules once more pure
	@$(BIN)/python tools/run_tests.py $(ARGS)

bench: dev-env compile java ## print the benchmark tables
	@$(BIN)/python -m benchmarks $(ARGS)

lint: dev-env ## ruff, mypy --strict, import rules
	@echo "lint: ruff, mypy --strict and import rules; a minute the first time, then 10 s"
	@$(BIN)/ruff check --quiet $(LINTED)
	@$(BIN)/ruff format --quiet --check $(LINTED) || { echo "lint: make format puts this right" >&2; exit 1; }
	@$(BIN)/mypy $(LINTED)
	@$(BIN)/lint-imports --no-logo

format: dev-env ## lay out the sources as make lint wants them
	@$(BIN)/ruff check --quiet --fix-only $(LINTED)
	@$(BIN)/ruff format --quiet $(LINTED)

soak: dev-env compile java servers ## the long tests: many more random cases, hours if you let it
	@HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -m "soak or hypothesis" --timeout 7200 $(ARGS)

clean: ## remove the environment, everything built, and caches
	@rm -rf .venv build dist src/*.egg-info .hypothesis
	@find $(LINTED) -name '*.so' -delete
	@find . -name .git -prune -o \( -name __pycache__ -o -name '.*_cache' \) -prune -exec rm -rf {} +

env:
	@$(BOOTSTRAP) env

pipeline-env:
	@$(BOOTSTRAP) env schemas spark
	@$(BOOTSTRAP) ask-java

dev-env:
	@$(BOOTSTRAP) env dev schemas spark kafka nats redis amqp mqtt

compile: env ## compile the hot modules, when a C compiler is there
	@$(BOOTSTRAP) compile

java: ## a Java runtime for Spark, from Debian's packages when none is found
	@$(BOOTSTRAP) java

servers: ## Redis, RabbitMQ, Mosquitto and Kafka for the tests of connectors
	@$(BOOTSTRAP) servers

browser: ## Debian's chromium, for the tests of pages
	@$(BOOTSTRAP) browser
