#!/usr/bin/env bash
# Installs everything, checks style, scripts, types and imports, and runs all tests: those that start Ray, vLLM and
# DeepSpeed first. With arguments, pytest runs with these instead.
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

read_flags "" "$@"
use_cpu_environment
unset PYTHONDONTWRITEBYTECODE  # otherwise each of the tests' many processes compiles the same sources
bash scripts/setup.sh
export PATH="$VENV/bin:$PATH" HF_HUB_OFFLINE=1
ruff check .
ruff format --check .
shellcheck -x scripts/*.sh scripts/*.sbatch evaluation/*.sh studies/*/*.sh .ci/run
if (( ! ${#FLAGS[@]} )); then
    # The unit tests come last: their files are short, so the workers end at about the same time.
    FLAGS=(-n 2 --dist loadfile --durations 15 --durations-min 1 tests/stack tests/browser tests/gpu tests/unit)
fi
check_types() {
    mypy && lint-imports --no-logo --no-cache
}

# Types and imports take one core for a minute: the tests begin meanwhile.
REPORT="$(mktemp)"
trap 'rm -f "$REPORT"' EXIT
check_types >"$REPORT" 2>&1 &
TYPES_PID=$!
FAILED=0
python -m pytest "${FLAGS[@]}" || FAILED=1
wait "$TYPES_PID" || FAILED=1
cat "$REPORT"
exit "$FAILED"
