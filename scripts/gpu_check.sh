#!/usr/bin/env bash
# Run this for a few minutes on one GPU before renting eight. Trains the quickstart's policy the way the presets do, with
# CUDA graphs, kills and resumes the run, and compares weights, scores and memory with what they should be. Ends with a
# table, and a remedy for each failed check, at the first one that makes the rest pointless. gpu_check.json in the output
# folder is for a bug report. Exit status: 0, 1 if a check failed, 2 without a GPU.
#   --output outputs/gpu_check   new folder for the logs
#   --model FOLDER               a policy other than the quickstart's; further flags go to the training command
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

read_flags "" "$@"
export PATH="${VENV:-$PWD/.venv}/bin:$PATH" HF_HUB_OFFLINE=1
exec openrlhf-swap check "${FLAGS[@]}"
