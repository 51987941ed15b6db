#!/usr/bin/env bash
# Installs everything, checks style, scripts, types and imports, and runs the tests: first the unit part,
# then the stack part, which starts Ray, vLLM and DeepSpeed. The last line has the totals of both. If there are
# arguments, pytest runs once, with these arguments.
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
if (( ${#FLAGS[@]} )); then exec python -m pytest "${FLAGS[@]}"; fi

LOG="$(mktemp)"
trap 'rm -f "$LOG"' EXIT
STATUS=0 TIMES=() CLOSINGS=""

# run_part NAME FLAG ...: runs pytest; records the seconds it took and its closing line.
run_part() {
    local start=$SECONDS
    python -m pytest "${@:2}" | tee "$LOG" || STATUS=1
    TIMES+=("[test] $1 part: $((SECONDS - start)) s")
    # Without a closing line, pytest has failed.
    CLOSINGS+="$(grep -E '^=+ .*[0-9] (passed|failed|skipped|error).* in [0-9.]+s' "$LOG" | tail -n 1 || echo '1 failed') "
}

# sum_of WORDS: total of the tests that the closing lines count under these words.
sum_of() {
    { grep -oE "[0-9]+ ($1)" <<<"$CLOSINGS" || true; } | awk '{ sum += $1 } END { print sum + 0 }'
}

run_part unit -n 2 --dist worksteal tests/unit tests/browser tests/gpu
run_part stack -n 2 --dist loadfile tests/stack
printf '%s\n' "${TIMES[@]}" "$(sum_of passed) passed, $(sum_of 'failed|errors?') failed, $(sum_of skipped) skipped"
exit "$STATUS"
