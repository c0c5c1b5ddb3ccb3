# Each target sets up all it needs; running one twice does the work once.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint format docs figures notebooks upgrade wheel release-check clean

demo: $(VENV)/.lab ## the paper's comparison on embedded data: a table, and runs/demo/report.html
	$(BIN)/ausam compare sgd sam sam@0.5x0.5 sam+random ausam-0.5 --model resnet-tiny-w32 --batch-size 128 \
		--lr 0.1 --rho 0.4 --ramp 5 --seeds 3 --out runs/demo

test: $(VENV)/.dev ## every test and every example of a docstring, two workers of one thread each
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.dev ## style, types and the layers of the package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs ## the documentation as pages, in site/; look at it with: python3 -m http.server -d site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

figures: $(VENV)/.lab ## the pictures and the tables of the documentation, from docs/results/*.json
	$(BIN)/python tools/figures.py
	$(BIN)/python tools/results_tables.py

notebooks: $(VENV)/.dev ## run the tutorials and keep what they show
	OMP_NUM_THREADS=1 $(BIN)/python tools/notebooks.py

upgrade: $(VENV)/.dev ## the newest version of everything but torch; constraints.txt says which
	grep '^torch==' constraints.txt > $(VENV)/torch.txt
	$(BIN)/python -m pip install --quiet --upgrade --upgrade-strategy eager -c $(VENV)/torch.txt -e ".[dev]"
	(grep '^#' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | sed 's/^\(torch==[0-9.]*\).*/\1/') > $(VENV)/new.txt
	mv $(VENV)/new.txt constraints.txt
	touch $(VENV)/.dev $(VENV)/.lab $(VENV)/.docs

wheel: $(VENV)/.dev ## dist/*.whl
	$(BIN)/python -m build --wheel --no-isolation

release-check: $(VENV)/.dev ## sdist and wheel: built, checked, installed in clean environments, tried
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	PYTHON=$(PYTHON) RELEASE=$(RELEASE) tools/release_check.sh

clean:
	rm -rf $(VENV) dist build runs site

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.lab: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[lab]"
	touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[docs]"
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[dev]"
	touch $@ $(VENV)/.lab
