# Every target needs only Python 3.11 or later; the first one installs the rest into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check prove local lock clean
.DEFAULT_GOAL := demo

$(VENV)/.installed: requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

# A job from start to end on this machine. TICKET="any text" takes your own; the demo reads it from its environment.
# (The text is taken as it stands: make must not expand a $ in it.)
override TICKET := $(value TICKET)
export TICKET
demo: $(VENV)/.installed
	$(BIN)/python -m local.demo

test: $(VENV)/.installed
	$(BIN)/pytest -n 2

check: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy shared functions
	$(BIN)/lint-imports
	$(BIN)/cfn-lint template.yaml

# Dies at every call, delivers everything twice and out of order, and compares. ARGS go to `stafette prove`.
prove: $(VENV)/.installed
	$(BIN)/stafette prove $(ARGS)

# Keeps one machine running, with an HTTP endpoint that any SQS client can send to.
local: $(VENV)/.installed
	$(BIN)/python -m local.serve

# Pins what pyproject.toml asks for. The layer takes the same versions as the tests.
lock: $(VENV)/.installed
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --quiet -o requirements-dev.txt
	$(BIN)/uv pip compile pyproject.toml -c requirements-dev.txt --universal --python-version 3.11 --no-header --no-emit-index-url --quiet -o shared/requirements.txt

clean:
	rm -rf $(VENV) .aws-sam .stafette
