#!/usr/bin/env bash
# Evaluates a model on the five benchmarks with the paper's settings: 16 samples, temperature 0.6, top-p 0.95, 32,768
# tokens. Killed at any time, it goes on when it is started again. Further flags go to evaluation.run.
#   MODEL=...       hub id, or folder in Hugging Face format
#   OUTPUT=...      folder of this evaluation
#   BENCHMARKS="math500 amc23 aime24 aime25 olympiadbench"
#   DATA=...        folder with local copies of the benchmarks; the hub by default
#   ENGINES=1       vLLM engines; TENSOR_PARALLEL=1 GPUs of each
#   SUFFIX=...      text after each problem (default: the one that R1-style models are asked with)
#   --dry-run       print the command and stop
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

if [[ "${1:-}" == "-h" || "${1:-}" == "--help" ]]; then
    sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
fi
[[ -n "${MODEL:-}" ]] || fail "MODEL is not set; use a hub id, or a folder in Hugging Face format"
OUTPUT="${OUTPUT:-outputs/eval/$(basename "$MODEL")}"
ENGINES="${ENGINES:-1}"
TENSOR_PARALLEL="${TENSOR_PARALLEL:-1}"
for name in ENGINES TENSOR_PARALLEL; do
    [[ "${!name}" =~ ^[1-9][0-9]*$ ]] || fail "$name is ${!name}; use a whole number of at least 1"
done
read -ra BENCHMARKS <<<"${BENCHMARKS:-math500 amc23 aime24 aime25 olympiadbench}"

command=(python -m evaluation.run --model "$MODEL" --output "$OUTPUT" --benchmarks "${BENCHMARKS[@]}"
    --samples 16 --temperature 0.6 --top-p 0.95 --max-tokens 32768
    --engines "$ENGINES" --tensor-parallel-size "$TENSOR_PARALLEL"
    --suffix "${SUFFIX- Please reason step by step, and put your final answer within \\boxed{\}.}")
[[ -n "${DATA:-}" ]] && command+=(--data "$DATA")
if [[ "${1:-}" == "--dry-run" ]]; then
    shift
    printf '%q ' "${command[@]}" "$@"
    printf '\n'
    exit 0
fi
VENV="${VENV:-$PWD/.venv}"
[[ -d "$VENV" ]] && export PATH="$VENV/bin:$PATH"
exec "${command[@]}" "$@"
