# Two commands do everything on a fresh machine with Python 3.11 or newer: make demo, make test.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test check format clean

# Touch files mark what is installed, so that the second call is quick.
$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing dcmh into $(VENV) (a minute or two the first time)"
	$(PIP) install -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing dcmh with its development tools into $(VENV) (a minute or two the first time)"
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/dcmh demo

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell README.md CHANGELOG.md docs src tests

test: check
	$(BIN)/pytest

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV)
