# Two commands matter: `make demo` and `make test`. Each prepares a fresh machine first; a second run starts at once.
SHELL := /bin/bash
BIN := .venv/bin
# Programs find the project's own commands and the Java that the set-up found.
# Spark and the tests start many a Python: each would compile all of our sources if none may keep what it compiled.
RUN := env -u PYTHONDONTWRITEBYTECODE PATH="$(CURDIR)/$(BIN):$$PATH" JAVA_HOME="$$(cat .venv/.java-home)"

.PHONY: help setup demo check test oldest pythons docs pictures lint format bench faults fuzz asan durability load dist release requirements clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: ## create .venv with the pinned packages, build the project, find Java
	@tools/setup

demo: setup ## run the main job
	@$(RUN) penstock demo

check: setup ## the quick checks: ruff, mypy, and the tests that need no server
	@$(RUN) ruff check --quiet .
	@$(RUN) ruff format --check --quiet .
	@$(RUN) mypy
	@$(RUN) pytest -q -n 2 tests/pure $(ARGS)

test: setup lint ## run the checks and the tests; ARGS="-k name" picks some
	@tools/setup --browser
	@$(RUN) python -m tests.spark.classes
	@$(RUN) pytest -n 4 -m "not heavy" $(ARGS)

# What a dependency can break: everything pure, then each capability once on a real server, and a Spark session.
OLDEST := tests/pure $(addprefix tests/live/test_,server.py connection.py cli.py wire_bulk.py wire_publish.py \
  jetstream_publish.py jetstream_topology.py chunks.py bus.py channels_client.py pipelines.py) \
  tests/live/console/test_console.py \
  tests/spark/test_batch.py tests/spark/test_delta_example.py

oldest: setup ## run a part of the tests with the oldest versions that are allowed
	@tools/environment .venv-oldest .venv/bin/python requirements/oldest.txt
	@env PATH="$(CURDIR)/.venv-oldest/bin:$$PATH" JAVA_HOME="$$(cat .venv/.java-home)" \
	  pytest -m "not heavy" $(OLDEST) $(ARGS)

pythons: setup ## run the tests that need no Spark with every other supported Python that is here
	@env -u PYTHONDONTWRITEBYTECODE JAVA_HOME="$$(cat .venv/.java-home)" tools/pythons $(ARGS)

docs: setup ## write the generated reference pages anew, and build the site into build/site
	@$(RUN) python tools/reference.py
	@$(RUN) python tools/licences.py
	@$(RUN) python tools/site_pages.py

pictures: setup ## make the pictures of the docs anew, in a browser
	@tools/setup --browser
	@env PENSTOCK_PICTURES=docs/howto/images $(RUN) pytest -q tests/live/console/test_console_browser.py -k pictures

lint: setup ## ruff, mypy strict on src, and pip-audit if its index can be reached
	@$(RUN) ruff check --quiet .
	@$(RUN) ruff format --check --quiet .
	@$(RUN) mypy
	@$(RUN) python tools/audit.py

format: setup ## let ruff mend what it can
	@$(RUN) ruff check --quiet --fix .
	@$(RUN) ruff format --quiet .

bench: setup ## run the benchmarks into artifacts/bench.json and docs/why/performance.md; QUICK=1, ONLY="part part"
	@mkdir -p artifacts
	@$(RUN) python benchmarks/run.py $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(ARGS)

faults: setup ## break everything on purpose: SEED=n MINUTES=m ONLY="part part"; without these, the long tests, fuzz, asan
	@$(RUN) python -m tests.faults.run --seed $(or $(SEED),1) --minutes $(or $(MINUTES),10) --only "$(ONLY)" $(ARGS)
ifeq ($(SEED)$(MINUTES)$(ONLY)$(ARGS),)
	@$(RUN) pytest -m heavy --timeout 3600
	@$(MAKE) --no-print-directory fuzz MINUTES=5
	@$(MAKE) --no-print-directory asan
endif

fuzz: setup ## mutate real bytes into every reader; MINUTES=m, SEED=n, ONLY="name name", ARGS=--page
	@$(RUN) python -m tests.fuzz.run --minutes $(or $(MINUTES),2) --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY)) $(ARGS)

asan: setup ## run the compiled modules under AddressSanitizer; MINUTES=m of mutated bytes, ARGS=--page
	@$(RUN) python -m tests.fuzz.asan --minutes $(or $(MINUTES),1) $(ARGS)

durability: setup ## lose all that was not synced, and damage blocks, on a real server; writes artifacts/durability.json
	@$(RUN) python -m tests.durability.run $(ARGS)

load: setup ## much of everything at once, and a soak, into artifacts/; ONLY="part part", ARGS="--minutes 5"
	@mkdir -p artifacts
	@$(RUN) python -m tests.load $(ONLY) $(ARGS)

dist: setup ## build source, plain and compiled wheels into dist/, and try each in an empty environment
	@$(RUN) python tools/dist.py $(ARGS)

release: setup ## make every check, build dist/ and write its notes from the changelog; DRAFT=1 takes what is there
	@$(RUN) python tools/release.py check $(if $(DRAFT),--draft)
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory oldest
	@$(MAKE) --no-print-directory pythons
	@$(MAKE) --no-print-directory dist
	@$(RUN) python tools/release.py notes $(if $(DRAFT),--draft)

PIN := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url \
  --no-emit-find-links --upgrade --custom-compile-command "make requirements" pyproject.toml

requirements: setup ## pin the newest and the oldest versions anew (needs uv)
	@command -v uv >/dev/null || { echo "make requirements needs uv: pip install uv"; exit 1; }
	$(PIN) -o requirements/base.txt
	$(PIN) --extra all --group dev -o requirements/dev.txt
	$(PIN) --resolution lowest-direct --extra all --group test -o requirements/oldest.txt

clean: ## remove everything that the targets made
	rm -rf .venv .venv-oldest .venv-3.* build dist artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse src/*.egg-info
	find src -name '*.so' -delete -o -name '*.c' -path '*/wire/*' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
