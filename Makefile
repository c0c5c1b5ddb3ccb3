# Each target installs what it needs and no more; running one twice installs once.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Without byte code: Python compiles the few modules that are imported, pip would compile all of torch and transformers.
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile
PIP    := $(BIN)/python $(INSTALL) -c constraints.txt
# Whatever the shell says: without byte code on disk every process would compile torch again.
export PYTHONDONTWRITEBYTECODE =
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# The library alone has an environment of its own: a test that needs more than torch cannot hide.
CORE        ?= $(VENV)-core
CORE_PINS   ?= constraints.txt
CORE_SOURCE := $(addprefix src/ausam/,common feedback.py pairing.py optimizer methods sampler policies)
CORE_TESTS  := $(addprefix tests/,optimizer methods sampler policies)

.PHONY: demo test test-core test-oldest test-all lint format docs figures notebooks upgrade wheel release-check clean

# sgd@0.2x0.5 is a tuned SGD: on validation samples (4 seeds, six lengths and batch sizes, four rates), none was 0.2 points better.
demo: $(VENV)/.lab ## SAM, SGD and selection on digits with wrong labels: a table, the pages of a report and of six audits
	$(BIN)/ausam compare sgd sgd@0.2x0.5 sam sam+random ausam-0.5 sam+trusted --model resnet-tiny-w32 --batch-size 128 \
		--lr 0.1 --rho 0.4 --seeds 3 --out runs/demo
	$(BIN)/ausam audit runs/demo

test: $(VENV)/.test ## what a change must pass: all but the tests marked nightly, two workers of one thread each
	$(PYTEST)

test-core: $(CORE)/.core ## the library alone, with torch and pytest: optimizer, methods, sampler, policies
	OMP_NUM_THREADS=1 $(CORE)/bin/python -m pytest -n 2 --dist loadfile $(CORE_TESTS) $(CORE_SOURCE)

test-oldest: ## the same with the oldest versions that pyproject.toml allows
	$(MAKE) test-core CORE=$(VENV)-oldest CORE_PINS=oldest.txt

test-all: $(VENV)/.dev ## every test: with kills, random command lines, long property runs, and every optional package
	$(PYTEST) -m ""

lint: $(VENV)/.lint ## style, types, the layers of the package, the sentences and figures of the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/budget.py
	$(BIN)/python tools/prose.py
	$(BIN)/python tools/figures_in_text.py

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs ## the documentation as pages, in site/; look at it with: python3 -m http.server -d site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

figures: $(VENV)/.lab ## the pictures and the tables of the documentation, from the results in research/
	$(BIN)/python tools/figures.py
	$(BIN)/python tools/results_tables.py

notebooks: $(VENV)/.dev ## run the tutorial and keep what it shows
	OMP_NUM_THREADS=1 $(BIN)/python tools/notebooks.py

upgrade: $(VENV)/.dev ## the newest version of everything but torch; constraints.txt says which
	grep '^torch==' constraints.txt > $(VENV)/torch.txt
	$(BIN)/python $(INSTALL) --upgrade --upgrade-strategy eager -c $(VENV)/torch.txt -e ".[dev]"
	(grep '^#' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | sed 's/^\(torch==[0-9.]*\).*/\1/') > $(VENV)/new.txt
	mv $(VENV)/new.txt constraints.txt
	touch $(addprefix $(VENV)/.,dev lab docs lint test)

wheel: $(VENV)/.dev ## dist/*.whl
	$(BIN)/python -m build --wheel --no-isolation

release-check: $(VENV)/.dev ## sdist and wheel: built, checked, installed in clean environments, tried
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	PYTHON=$(PYTHON) RELEASE=$(RELEASE) tools/release_check.sh

clean:
	rm -rf $(VENV) $(VENV)-core $(VENV)-oldest dist build runs site

# A pip of 2025 or later: the one that Python 3.11 brings needs three times as long to resolve the extras.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --upgrade "pip>=25"

$(CORE)/.core: pyproject.toml $(CORE_PINS)
	$(PYTHON) -m venv $(CORE)
	$(CORE)/bin/python $(INSTALL) --upgrade "pip>=25"
	$(CORE)/bin/python $(INSTALL) -c $(CORE_PINS) -e ".[test-core]"
	touch $@

$(VENV)/.lab: EXTRAS = lab
$(VENV)/.test: EXTRAS = test,accelerate,lightning,transformers
$(VENV)/.lint: EXTRAS = lint
$(VENV)/.docs: EXTRAS = docs
$(VENV)/.dev: EXTRAS = dev
$(VENV)/.lab $(VENV)/.test $(VENV)/.lint $(VENV)/.docs $(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[$(EXTRAS)]"
	touch $@
