#!/usr/bin/env bash
# Trains with SWAP and the paper's settings, as a file beside this script says:
#   bash scripts/train_swap.sh laptop [flags] the quickstart's policy, or a small one of yours, on two cores
#   bash scripts/train_swap.sh 1.5b [flags]   DeepSeek-R1-Distill-Qwen-1.5B on one node of 8 x 80 GB
#   bash scripts/train_swap.sh 7b [flags]     DeepSeek-R1-Distill-Qwen-7B on one node of 8 x 80 GB
#   bash scripts/train_swap.sh 1gpu [flags]   R1-Distill-1.5B or Qwen2.5 on one GPU of 24, 48 or 80 GB, full or LoRA
# The flags are those of openrlhf-swap train and win over the file; --dry-run shows what would be trained. The same
# command resumes, however the run was stopped. WANDB_API_KEY in the environment also logs to Weights & Biases.
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/common.sh
source scripts/common.sh

read_flags "" "$@"
NAME="${FLAGS[0]:-}"
FILE="scripts/train_swap_$NAME.yaml"
[[ "$NAME" =~ ^[A-Za-z0-9._-]+$ && -f "$FILE" ]] || fail "the first argument is ${NAME:-missing}; use laptop, 1gpu, 1.5b or 7b"
export PATH="${VENV:-$PWD/.venv}/bin:$PATH"
set --
# With the key in the environment, OpenRLHF only looks whether the flag has a value.
if [[ -n "${WANDB_API_KEY:-}" ]]; then set -- --logger.wandb.key WANDB_API_KEY --logger.wandb.project openrlhf-swap; fi
exec openrlhf-swap train --config "$FILE" "$@" "${FLAGS[@]:1}"
