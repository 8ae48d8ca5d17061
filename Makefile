PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Otherwise each of the many processes that tests start compiles our modules again.
export PYTHONDONTWRITEBYTECODE :=
READY := $(VENV)/.ready
COMPILED := $(shell sed -n 's/^    "\(.*\.py\)",$$/\1/p' hatch_build.py)
# Tests wait for much, so more processes than cores keep these busy. Those with servers have a dozen processes each, and
# 3 GB: three on two cores are so late that tests fail for it.
WORKERS ?= 2
UNIT_WORKERS ?= 5
# tests/longest.py has the order of the files.
BY_FILE := --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help

##@ Use
.PHONY: demo
demo: $(READY) ## Show it all on real servers (LOG=pulsar; KEEP=1)
	@$(BIN)/helenus-stack demo $(if $(LOG),--log $(LOG)) $(if $(KEEP),--keep)

.PHONY: stop
stop: $(READY) ## Stop what `make demo KEEP=1` left running
	@$(BIN)/helenus-stack down

.PHONY: wheel
wheel: $(READY) ## Make dist/helenus-….whl, for your own machines
	@$(BIN)/python -m hatchling build --target wheel --directory dist
	@ls -lh dist/*.whl

.PHONY: packages
packages: build/packages-venv/.ready ## Make wheels, .deb, .rpm, SBOMs (needs Go or nfpm)
	@build/packages-venv/bin/python compose/packages/build.py dist

.PHONY: release
release: build/packages-venv/.ready ## Make and try a release, VERSION=0.2.0 (COMMIT=1: commit)
	@build/packages-venv/bin/python compose/packages/release.py $(if $(COMMIT),--commit) $(VERSION)

build/packages-venv/.ready: compose/packages/tools.txt
	@$(PYTHON) -m venv --clear build/packages-venv
	@build/packages-venv/bin/pip install --quiet --disable-pip-version-check --requirement compose/packages/tools.txt
	@touch $@

##@ Develop
.PHONY: test
test: test-unit ## The tests: those without servers, then those with
	$(BIN)/python tests/rerun_failed.py -m "integration and not cluster and not long" --durations=10 -- -n $(WORKERS) $(BY_FILE)

.PHONY: test-long
test-long: $(READY) ## The same in more modes, versions and forms; on Pulsar
	$(BIN)/pytest -m "hypothesis and not integration" --hypothesis-profile=long -n 2 $(BY_FILE)
	$(BIN)/pytest -m "long and not cluster" -n 2 $(BY_FILE)

.PHONY: test-cluster
test-cluster: $(READY) ## The tests on three Cassandra nodes
	$(BIN)/pytest -m cluster

.PHONY: test-unit
test-unit: $(READY) ## The tests that need no server
	$(BIN)/python tests/rerun_failed.py -m "not integration and not long and not containers" -- -n $(UNIT_WORKERS) $(BY_FILE)

.PHONY: check
check: $(READY) ## Style, types, and that the house is tidy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

.PHONY: reference
reference: $(READY) ## Write docs/configuration.md and other tables from code
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/tested.py

.PHONY: screenshots
screenshots: $(READY) ## Make the pictures (needs chromium, chromium-driver)
	$(BIN)/python docs/screenshots.py

.PHONY: bench
bench: $(READY) ## Measure; docs/performance.md says what and how
	$(BIN)/python -m bench

.PHONY: java-classes
java-classes: $(READY) ## Compile our classes of Java again
	@$(BIN)/python tests/java_classes.py

.PHONY: constraints
constraints: ## Print the newest versions allowed, for constraints.txt
	$(PYTHON) -m venv --clear build/constraints
	build/constraints/bin/pip install --quiet --upgrade pip
	build/constraints/bin/pip install --quiet ".[connector,otel,pulsar]" ./compose --group dev
	build/constraints/bin/pip freeze --exclude helenus --exclude helenus-stack --exclude pip

.PHONY: docs
docs: build/docs-venv/.ready ## Build the documentation as a site, in build/site
	@build/docs-venv/bin/python docs/site.py

build/docs-venv/.ready: docs/constraints.txt
	@$(PYTHON) -m venv --clear build/docs-venv
	@build/docs-venv/bin/pip install --quiet --disable-pip-version-check --constraint docs/constraints.txt mkdocs-material
	@touch $@

.PHONY: test-containers
test-containers: $(READY) ## Images and compose files, on Docker (as root; 10 GB)
	$(BIN)/pytest -m containers tests/containers -s

.PHONY: clean
clean: ## Remove what was built and installed, but no downloads
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: clean-all
clean-all: clean ## Remove servers and downloads too: ~/.cache/helenus
	rm -rf .helenus-stack "$${XDG_CACHE_HOME:-$$HOME/.cache}/helenus"

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml compose/pyproject.toml constraints.txt hatch_build.py $(COMPILED) $(COMPILED:.py=.pxd)
	@$(PYTHON) -c 'import sys; sys.exit("Helenus needs Python 3.10 or later, this is %s: name another by PYTHON=..." % sys.version.split()[0] if sys.version_info < (3, 10) else 0)'
	@echo "Installing into $(VENV): once, some minutes; downloads 430 MB, takes 1.4 GB of disk ..."
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@# A dot every five seconds: pip is quiet for minutes.
	@(while sleep 5; do printf .; done) & dots=$$!; trap "kill $$dots; echo" EXIT; \
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[connector,otel,pulsar]" --editable ./compose --group dev
	@touch $@
