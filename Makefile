# Every target needs only Python 3.11 or later; the first one installs the rest into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check prove bench build local deploy-local lock clean
.DEFAULT_GOAL := demo

$(VENV)/.installed: requirements-dev.txt pyproject.toml
	@echo "installing what is needed into $(VENV), once: about two minutes"
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

# Figures at size, as tables: a fan-out of 10,000 parts, 10,000 effects in doubt, killed workers, the router, three agents
# at once. ARGS=effects: that one.
bench: $(VENV)/.installed
	$(BIN)/python -m tests.bench $(ARGS)

# What deploys: `sam build` for a processor and a Python, then a check that every part of it fits them. SAM is no
# dependency of this project: any SAM CLI will do. $(RUNTIME) has to be on the PATH.
SAM ?= sam
ARCHITECTURE ?= arm64
RUNTIME ?= python3.13
build: export ARCHITECTURE := $(ARCHITECTURE)
build: export RUNTIME := $(RUNTIME)
build: $(VENV)/.installed
	$(SAM) build --parameter-overrides Architecture=$(ARCHITECTURE) Runtime=$(RUNTIME)
	$(BIN)/python -m local.built Architecture=$(ARCHITECTURE) Runtime=$(RUNTIME)

# Keeps one machine running, with an HTTP endpoint that any SQS client can send to. ARGS="--processes 8" runs its
# functions in eight processes of their own, which may be killed.
local: $(VENV)/.installed
	$(BIN)/python -m local.serve $(ARGS)

# The README's deploy section on this machine: SAM CLI and an AWS emulator that runs the functions as processes, each
# in an environment of its own. A worker is killed in the middle of a job. ARGUMENTS=--patient leaves time-outs alone.
deploy-local: $(VENV)/.installed .venv-sam/.installed .venv-ministack/.installed
	$(BIN)/python -m local.deploy $(ARGUMENTS)

.venv-%/.installed: requirements-%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	touch $@

# Pins what pyproject.toml asks for. The layer takes the same versions as the tests.
lock: $(VENV)/.installed
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --quiet -o requirements-dev.txt
	$(BIN)/uv pip compile pyproject.toml -c requirements-dev.txt --universal --python-version 3.11 --no-header --no-emit-index-url --quiet -o shared/requirements.txt
	echo 'aws-sam-cli==1.170.0' | $(BIN)/uv pip compile - --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet -o requirements-sam.txt
	echo 'ministack[full]==1.5.33' | $(BIN)/uv pip compile - --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet -o requirements-ministack.txt

clean:
	rm -rf $(VENV) .venv-sam .venv-ministack .aws-sam .stafette
