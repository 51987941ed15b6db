#!/usr/bin/env bash
# Installs everything, checks style, scripts, types and imports, and runs all tests: those that start Ray, vLLM and
# DeepSpeed first. With arguments, pytest runs with these instead.
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

read_flags "" "$@"
use_cpu_environment
bash scripts/setup.sh
export PATH="$VENV/bin:$PATH" HF_HUB_OFFLINE=1
ruff check .
ruff format --check .
shellcheck -x scripts/*.sh scripts/*.sbatch evaluation/*.sh studies/*/*.sh .ci/run
mypy
lint-imports --no-logo --no-cache
if (( ! ${#FLAGS[@]} )); then
    FLAGS=(-n 2 --dist loadfile tests/stack tests/unit tests/browser tests/gpu)
fi
exec python -m pytest "${FLAGS[@]}"
