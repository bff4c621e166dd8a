PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2

.PHONY: report report-full test lint test-all audit-self docs clean

report: .venv/.ready            ## a privacy report of models trained on real digits -> report/report.html
	$(BIN)/jaxpriv report --epsilon 8 2 --delta 1e-4 --relation add_or_remove_one --out report --overwrite

report-full: .venv/.ready-data  ## real purchases, pool of 20,000, 32 shadow models; continues an interrupted run
	$(BIN)/jaxpriv report --data purchases --max-records 22222 --shadows 32 --sampling-prob 0.05 \
	  --epsilon 8 2 --delta 1e-5 --relation add_or_remove_one --out report-full --overwrite --resume

test: .venv/.ready-test         ## everything that is not slow and needs no GPU
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow and not gpu"

test-all: .venv/.ready-test     ## the slow tests too, with XLA's full optimisation
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(BIN)/python -m pytest -n $(WORKERS) -m "not gpu"

audit-self: .venv/.ready        ## the probes of the bug zoo on the library's own DP-SGD
	$(BIN)/python -m experiments run audit/own_step --preset cpu --out build

lint: .venv/.ready-test         ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

docs: .venv/.ready-docs         ## the reference as a site -> build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:                          ## remove what the other targets made
	rm -rf .venv report report-full build dist .pytest_cache .ruff_cache

.venv/.ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/.ready-data: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[data]'
	touch $@ .venv/.ready

.venv/.ready-test: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,data,text]'
	touch $@ .venv/.ready .venv/.ready-data

.venv/.ready-docs: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@ .venv/.ready
