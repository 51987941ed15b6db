#!/usr/bin/env bash
# What to run before renting eight GPUs: some minutes on one. Trains the embedded policy as the presets do it, kills and
# resumes that, and compares weights, scores and memory with what they should be. Ends with a table, and with a remedy for
# each thing that is wrong. Exit status: 0, 1 when something is wrong, 2 without a GPU.
#   --output outputs/gpu_check   folder for the logs, which must be new
#   --model FOLDER               a policy instead of the embedded one; further flags go to the training
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

read_flags "" "$@"
export PATH="${VENV:-$PWD/.venv}/bin:$PATH" HF_HUB_OFFLINE=1
exec python -m openrlhf_swap.gpu_check "${FLAGS[@]}"
