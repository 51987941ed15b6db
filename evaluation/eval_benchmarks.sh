#!/usr/bin/env bash
# Evaluates a model on the five benchmarks with the paper's settings, which stand in eval_benchmarks.yaml: 16 samples,
# temperature 0.6, top-p 0.95, 32,768 tokens. If it is killed, the same command resumes. Further flags go to
# openrlhf-swap eval run.
#   MODEL=...       hub id, or folder in Hugging Face format
#   OUTPUT=...      folder for this evaluation (default outputs/eval/<model>)
#   BENCHMARKS=...  others, such as "math500 aime24"
#   DATA=...        folder with local copies of the benchmarks; the hub by default
#   ENGINES=...     vLLM engines that share the problems (default: as many as the GPUs allow)
#   TENSOR_PARALLEL=1  GPUs per engine
#   SUFFIX=...      text after each problem (default: the usual instruction for R1-style models)
#   --dry-run       print the command and stop
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

HELP_OF=evaluation/eval_benchmarks.sh read_flags --dry-run "$@"

[[ -n "${MODEL:-}" ]] || fail "MODEL is not set; use a hub id, or a folder in Hugging Face format"
OUTPUT="${OUTPUT:-outputs/eval/$(basename -- "$MODEL")}" DATA="${DATA:-}"
undash MODEL OUTPUT DATA
TENSOR_PARALLEL="${TENSOR_PARALLEL:-1}"
require_count TENSOR_PARALLEL
GPUS="$(count_gpus)"
ENGINES="${ENGINES:-$(( GPUS > TENSOR_PARALLEL ? GPUS / TENSOR_PARALLEL : 1 ))}"
require_count ENGINES
read -ra BENCHMARKS <<<"${BENCHMARKS:-}"

command=(python -m openrlhf_swap eval run --config evaluation/eval_benchmarks.yaml --model "$MODEL" --output "$OUTPUT"
    --engines "$ENGINES" --tensor-parallel-size "$TENSOR_PARALLEL")
(( ${#BENCHMARKS[@]} )) && command+=(--benchmarks "${BENCHMARKS[@]}")
[[ -n "${SUFFIX+set}" ]] && command+=("--suffix=$SUFFIX")
[[ -n "$DATA" ]] && command+=(--data "$DATA")
command+=("${FLAGS[@]}")
end_dry_run "${command[@]}"
VENV="${VENV:-$PWD/.venv}"
[[ -d "$VENV" ]] && export PATH="$VENV/bin:$PATH"
show "${command[@]}" >&2
exec "${command[@]}"
