# Two commands do everything on a fresh machine with Python 3.11 or newer: make demo, make test.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-slow check browser docs dist format clean

# Tests start many processes: without compiled modules each one compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

# Touch files mark what is installed, so that the second call is quick.
$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing dcmh into $(VENV) (a minute or two the first time)"
	$(PIP) install -c constraints.txt -e '.[demo,serve]'
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
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs examples src tests

# The tests of the page need Chromium; without it they are skipped, and say so. This installs it on Debian, as root.
browser:
	@if ! command -v chromium-headless-shell >/dev/null && ! command -v chromium >/dev/null \
	    && grep -qs '^ID=debian' /etc/os-release && [ "$$(id -u)" = 0 ]; then \
	  echo "Installing Chromium for the tests of the page"; \
	  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium-headless-shell; } \
	    >/dev/null 2>&1 || echo "Chromium could not be installed (apt-get install chromium-headless-shell)"; \
	fi

# Three processes on two cores, since tests with servers mostly wait; those that share a server or a browser share a process.
test: check
	$(BIN)/pytest -n 3 --dist loadgroup --no-loadscope-reorder -m "not slow"
	@echo "Not run: the tests marked slow, which kill processes many times, train for long, or are timed. make test-slow runs them."

test-slow: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist loadgroup --no-loadscope-reorder -m slow --ignore tests/page
	$(BIN)/pytest -m slow tests/page

# The documentation site, into site/. Warnings are errors, and nothing is fetched.
docs: $(VENV)/.dev
	$(BIN)/mkdocs build --strict

# The wheel and the source archive, into dist/.
dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/hatchling build

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV)
