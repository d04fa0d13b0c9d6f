# Everything runs from a bare clone with Python >= 3.11 and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
AUDIT  := $(VENV)/audit
SECONDS ?= 60

# Tests start hundreds of processes; without bytecode each of them compiles the whole package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: audit fuzz bench demo docs notebooks site test test-full quick every torture lint format clean

# Installed once; again only when the pins or the dependencies change.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "proxyfl needs Python 3.11 or newer; call make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/proxyfl demo

# The generated parts of the method pages: parameters from the code, results from results/.
docs: $(READY)
	$(BIN)/python tools/refresh.py

# examples/*.ipynb from the scripts beside them, with what their cells give.
notebooks: $(READY)
	$(BIN)/python tools/notebooks.py

# The documentation as a site in build/site/html that fetches nothing. Warnings are errors.
# To search in it, look at it through a server: python3 -m http.server -d build/site/html
site: $(READY)
	$(BIN)/python tools/site_pages.py --build

# About 20 minutes on two cores that have nothing else to do.
bench: $(READY)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/small_step.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/million.py
	$(BIN)/python benchmarks/memory.py

# Vulnerabilities and licences of all pinned packages. Exit code 3, said in words, where no advisory database
# could be asked. pip-audit has an environment of its own: it is no part of what it judges.
audit: $(READY)
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && \
		$(AUDIT)/bin/pip install --quiet 'pip-audit==2.10.1'; }
	$(BIN)/python tools/audit.py --pip-audit $(AUDIT)/bin/pip-audit

# Coverage-guided fuzzing of every reader for SECONDS each; READERS="npz zip" for some of them.
fuzz: $(READY)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/pip install --quiet 'atheris==3.0.0'
	@for reader in $${READERS:-$$($(BIN)/python tests/untrusted/fuzz_readers.py --list)}; do \
		echo "$$reader"; \
		$(BIN)/python tests/untrusted/fuzz_readers.py $$reader $(SECONDS) > fuzz.log 2>&1 || \
			{ tail -n 40 fuzz.log; exit 1; }; \
	done; rm -f fuzz.log

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks tools examples
	$(BIN)/ruff format --check src tests benchmarks tools examples
	$(BIN)/mypy
	$(BIN)/lint-imports

# Lint and tests side by side: the type checker has one core's work, the tests have more.
test: $(READY)
	@$(MAKE) --no-print-directory -j 2 lint quick

test-full: $(READY)
	@$(MAKE) --no-print-directory -j 2 lint every

quick: $(READY)
	$(BIN)/pytest -n auto --dist worksteal -m "not slow"

# One worker more than there are cores: many slow tests wait for the programs that they started.
every: $(READY)
	$(BIN)/pytest -n $$($(BIN)/python -c 'import os; print(os.cpu_count() + 1)') --dist worksteal

# Kills, failing disks and damaged files, by the thousand: an hour on two cores that have nothing else to do.
torture: $(READY)
	$(BIN)/python tests/recovery/torture.py

format: $(READY)
	$(BIN)/ruff check --fix-only src tests benchmarks tools examples
	$(BIN)/ruff format src tests benchmarks tools examples

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
