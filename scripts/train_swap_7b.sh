#!/usr/bin/env bash
# DeepSeek-R1-Distill-Qwen-7B on 8 GPUs of 141 GB; see train_swap_r1.sh.
set -euo pipefail
SIZE=7B exec bash "$(dirname "${BASH_SOURCE[0]}")/train_swap_r1.sh" "$@"
